/* Runs the ways of escapes.c outside any sandbox, and is also the victim process that they try to reach.
 *
 *   outside OBJECT WAY < TARGET    exits with 0 if the way worked, 1 if not, 2 if it cannot work here, because the kernel
 *                                  has no such call or the user may not make it
 *   outside victim                 prints its id and addresses, and after each line of its input its state */
#include "farpool.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile uint64_t word = 1;
static volatile int signals;

static void count(int signal) {
    (void)signal;
    signals++;
}

/* Returns the number behind a name in a file of /proc; -1 if there is none. */
static long of_proc(const char *file, const char *name) {
    char line[256];
    long value = -1;
    FILE *from = fopen(file, "r");
    while (from && fgets(line, sizeof line, from))
        if (!strncmp(line, name, strlen(name))) sscanf(line + strlen(name), "%ld", &value);
    if (from) fclose(from);
    return value;
}

static int victim(void) {
    int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0666);
    volatile uint64_t *shared = segment < 0 ? 0 : shmat(segment, 0, 0);
    if (!shared || shared == (void *)-1) return 3;
    *shared = 1;
    /* The kernel removes the segment when the last process detaches it. */
    shmctl(segment, IPC_RMID, 0);
    struct sigaction counted = {.sa_handler = count, .sa_flags = SA_RESTART};
    for (int signal = 1; signal < 32; signal++) sigaction(signal, &counted, 0);
    printf("%d %d %lu\n", getpid(), segment, (unsigned long)(uintptr_t)&word);
    fflush(stdout);
    char line[16];
    while (fgets(line, sizeof line, stdin)) {
        struct rlimit cpu, files;
        cpu_set_t cpus;
        getrlimit(RLIMIT_CPU, &cpu);
        getrlimit(RLIMIT_NOFILE, &files);
        sched_getaffinity(0, sizeof cpus, &cpus);
        printf("word %lu, shared %lu, signals %d, CPU time %lu, files %lu, CPUs %d, nice %d, policy %d, IO %ld, score %ld, "
               "traced by %ld\n",
               (unsigned long)word, (unsigned long)*shared, signals, (unsigned long)cpu.rlim_max,
               (unsigned long)files.rlim_max, CPU_COUNT(&cpus), getpriority(PRIO_PROCESS, 0), sched_getscheduler(0),
               syscall(SYS_ioprio_get, 1, 0), of_proc("/proc/self/oom_score_adj", ""),
               of_proc("/proc/self/status", "TracerPid:"));
        fflush(stdout);
    }
    return 0;
}

int main(int count_of, char **arguments) {
    if (count_of == 2) return victim();
    static uint8_t target[4096];
    static int32_t found[2];
    size_t bytes = fread(target, 1, sizeof target, stdin);
    void *object = dlopen(arguments[1], RTLD_NOW);
    int64_t (*way)(struct farpool_call *) = object ? (int64_t(*)(struct farpool_call *))dlsym(object, arguments[2]) : 0;
    if (!way) return 4;
    struct farpool_call call = {.version = FARPOOL_VERSION,
                                .args = (uintptr_t)target,
                                .args_bytes = bytes,
                                .output = (uintptr_t)found,
                                .output_capacity = sizeof found,
                                .hop = FARPOOL_STAYS};
    if (way(&call) != sizeof found) return 5;
    if (!found[0]) fprintf(stderr, "%s\n", strerror(found[1]));
    int is_not_to_be_had = found[1] == ENOSYS || found[1] == EPERM || found[1] == EACCES;
    return found[0] ? 0 : is_not_to_be_had ? 2 : 1;
}
