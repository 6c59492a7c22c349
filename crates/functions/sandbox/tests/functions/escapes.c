/* Ways out of a sandbox, as native functions. Each function tries to reach one thing (another process, a file, a socket,
 * a device, a CPU set, a limit) and outputs whether it could. The same object runs outside the sandbox
 * (escapes_outside.c), where each way must work, and inside, where none may. */
#include "farpool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Targets that the ways try to reach. escapes.rs fills in the values. */
struct target {
    int32_t pid;
    int32_t shared_memory;
    int32_t tcp_port;
    int32_t udp_port;
    uint64_t word_at;
    char file[128];
    char folder[128];
    char socket[104];
    char abstract_socket[104];
};

#define WAY(name)                                                                                                      \
    static int try_##name(const struct target *of);                                                                   \
    FARPOOL_FUNCTION(name) {                                                                                           \
        struct target of;                                                                                              \
        if (!farpool_args(call, &of, sizeof of)) return farpool_give_up(FARPOOL_BAD_ARGUMENTS);                        \
        errno = 0;                                                                                                     \
        int worked = try_##name(&of);                                                                                  \
        int32_t found[2] = {worked, errno};                                                                            \
        return farpool_put(call, found, sizeof found);                                                                 \
    }                                                                                                                  \
    static int try_##name(const struct target *of)

/* Signals. */

WAY(kill_process) { return kill(of->pid, SIGUSR1) == 0; }
WAY(kill_thread) { return syscall(SYS_tkill, of->pid, SIGUSR1) == 0; }
WAY(kill_thread_of_group) { return syscall(SYS_tgkill, of->pid, of->pid, SIGUSR1) == 0; }
WAY(queue_signal) {
    siginfo_t info = {.si_code = SI_QUEUE, .si_signo = SIGUSR1};
    return syscall(SYS_rt_sigqueueinfo, of->pid, SIGUSR1, &info) == 0;
}
WAY(queue_signal_to_thread) {
    siginfo_t info = {.si_code = SI_QUEUE, .si_signo = SIGUSR1};
    return syscall(SYS_rt_tgsigqueueinfo, of->pid, of->pid, SIGUSR1, &info) == 0;
}
WAY(signal_by_pidfd) {
    int fd = (int)syscall(SYS_pidfd_open, of->pid, 0);
    return fd >= 0 && syscall(SYS_pidfd_send_signal, fd, SIGUSR1, 0, 0) == 0;
}
WAY(signal_by_socket) {
    int pair[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && fcntl(pair[0], F_SETOWN, of->pid) == 0 &&
           fcntl(pair[0], F_SETSIG, SIGUSR1) == 0 && fcntl(pair[0], F_SETFL, O_ASYNC) == 0 && write(pair[1], "x", 1) == 1;
}
WAY(own_descriptor) {
    int fd = memfd_create("own", 0);
    return fcntl(fd, F_SETOWN, of->pid) == 0 && fcntl(fd, F_GETOWN) == of->pid;
}
WAY(own_descriptor_by_thread) {
    int fd = memfd_create("own", 0);
    struct f_owner_ex owner = {F_OWNER_TID, of->pid};
    return fcntl(fd, F_SETOWN_EX, &owner) == 0;
}
WAY(choose_descriptor_signal) {
    int fd = memfd_create("own", 0);
    return fcntl(fd, F_SETSIG, SIGKILL) == 0;
}

/* Returns an open Unix socket of the process or, outside, where it has none, one of a new pair. */
static int some_socket(void) {
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage name;
        socklen_t bytes = sizeof name;
        if (getpeername(fd, (struct sockaddr *)&name, &bytes) == 0 && name.ss_family == AF_UNIX) return fd;
    }
    int pair[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 ? pair[0] : -1;
}
WAY(own_socket) {
    int pid = of->pid;
    return ioctl(some_socket(), FIOSETOWN, &pid) == 0;
}
WAY(open_peer_process) {
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;
    return getsockopt(some_socket(), SOL_SOCKET, 77 /* SO_PEERPIDFD */, &pidfd, &bytes) == 0 && pidfd >= 0;
}

/* Limits and CPUs. */

WAY(limit_cpu_time) {
    struct rlimit one = {1, 1};
    return prlimit(of->pid, RLIMIT_CPU, &one, 0) == 0;
}
WAY(limit_files) {
    struct rlimit none = {0, 0};
    return prlimit(of->pid, RLIMIT_NOFILE, &none, 0) == 0;
}
WAY(read_limit) {
    struct rlimit found;
    return prlimit(of->pid, RLIMIT_NOFILE, 0, &found) == 0;
}
WAY(raise_own_limit) {
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    return setrlimit(RLIMIT_CORE, &all) == 0;
}
static cpu_set_t first_cpu(void) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(0, &cpus);
    return cpus;
}
WAY(set_cpus) {
    cpu_set_t cpus = first_cpu();
    return sched_setaffinity(of->pid, sizeof cpus, &cpus) == 0;
}
WAY(set_own_cpus) {
    cpu_set_t cpus = first_cpu();
    return sched_setaffinity(0, sizeof cpus, &cpus) == 0;
}
WAY(read_cpus) {
    cpu_set_t cpus;
    return sched_getaffinity(of->pid, sizeof cpus, &cpus) == 0;
}
WAY(read_cpu_time) {
    clockid_t clock;
    struct timespec time;
    /* Computes the id like `clock_getcpuclockid`, but without asking the kernel first. */
    clock = (clockid_t)(~(unsigned)of->pid << 3 | 2);
    return syscall(SYS_clock_gettime, clock, &time) == 0;
}
WAY(renice) { return setpriority(PRIO_PROCESS, of->pid, 15) == 0; }
WAY(schedule_as_batch) {
    struct sched_param none = {0};
    return sched_setscheduler(of->pid, SCHED_BATCH, &none) == 0;
}
WAY(schedule_own_in_real_time) {
    struct sched_param one = {1};
    return sched_setscheduler(0, SCHED_FIFO, &one) == 0;
}
WAY(set_io_priority) { return syscall(SYS_ioprio_set, 1, of->pid, 2 << 13 | 7) == 0; }
WAY(raise_out_of_memory_score) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/oom_score_adj", of->pid);
    int fd = open(path, O_WRONLY);
    return fd >= 0 && write(fd, "1000", 4) == 4;
}

/* Other processes. */

WAY(trace) { return ptrace(PTRACE_SEIZE, of->pid, 0, 0) == 0; }
WAY(read_memory) {
    uint64_t word;
    struct iovec here = {&word, 8}, there = {(void *)(uintptr_t)of->word_at, 8};
    return process_vm_readv(of->pid, &here, 1, &there, 1, 0) == 8;
}
WAY(write_memory) {
    uint64_t word = 666;
    struct iovec here = {&word, 8}, there = {(void *)(uintptr_t)of->word_at, 8};
    return process_vm_writev(of->pid, &here, 1, &there, 1, 0) == 8;
}
WAY(write_memory_file) {
    char path[64];
    uint64_t word = 666;
    snprintf(path, sizeof path, "/proc/%d/mem", of->pid);
    int fd = open(path, O_RDWR);
    return fd >= 0 && pwrite(fd, &word, 8, (off_t)of->word_at) == 8;
}
WAY(read_environment) {
    char path[64], bytes[8];
    snprintf(path, sizeof path, "/proc/%d/environ", of->pid);
    int fd = open(path, O_RDONLY);
    return fd >= 0 && read(fd, bytes, 8) >= 0;
}
WAY(read_program_link) {
    char path[64], found[256];
    snprintf(path, sizeof path, "/proc/%d/exe", of->pid);
    return readlink(path, found, sizeof found) > 0;
}
WAY(take_descriptor) {
    int fd = (int)syscall(SYS_pidfd_open, of->pid, 0);
    return fd >= 0 && syscall(SYS_pidfd_getfd, fd, 0, 0) >= 0;
}
WAY(compare_process) { return syscall(SYS_kcmp, getpid(), of->pid, 1 /* KCMP_VM */, 0, 0) >= 0; }
WAY(read_robust_list) {
    void *head;
    size_t bytes;
    return syscall(SYS_get_robust_list, of->pid, &head, &bytes) == 0;
}
/* The result is 0 if the leader of the session has no id in the PID namespace of this process, as in containers. */
WAY(read_session) { return getsid(of->pid) >= 0; }
WAY(enter_namespace) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/net", of->pid);
    int fd = open(path, O_RDONLY);
    return fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
}
WAY(count_events) {
    struct perf_event_attr asked = {.type = PERF_TYPE_SOFTWARE, .size = sizeof asked, .config = PERF_COUNT_SW_TASK_CLOCK};
    return syscall(SYS_perf_event_open, &asked, of->pid, -1, -1, 0) >= 0;
}
WAY(start_process) {
    int child = (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) _exit(0);
    return child > 0 && waitpid(child, 0, 0) == child;
}
WAY(start_program) {
    execl("/bin/true", "true", (char *)0);
    return 0;
}
WAY(make_namespaces) { return unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0; }
WAY(become_another_user) { return syscall(SYS_setresuid, 12345, 12345, 12345) == 0; }

/* Files. */

WAY(read_file) {
    char byte;
    int fd = open(of->file, O_RDONLY);
    return fd >= 0 && read(fd, &byte, 1) == 1;
}
WAY(write_file) {
    int fd = open(of->file, O_WRONLY);
    return fd >= 0 && write(fd, "x", 1) == 1;
}
WAY(look_at_file) {
    struct stat found;
    return stat(of->file, &found) == 0;
}
WAY(truncate_file) { return truncate(of->file, 0) == 0; }
WAY(change_mode) { return chmod(of->file, 0600) == 0; }
WAY(change_times) { return utimensat(AT_FDCWD, of->file, 0, 0) == 0; }
WAY(remove_file) { return syscall(SYS_unlinkat, AT_FDCWD, of->file, 0) == 0; }
static const char *in_folder(const struct target *of) {
    static char path[160];
    snprintf(path, sizeof path, "%s/new", of->folder);
    return path;
}
WAY(rename_file) { return renameat(AT_FDCWD, of->file, AT_FDCWD, in_folder(of)) == 0; }
WAY(create_file) { return open(in_folder(of), O_CREAT | O_WRONLY, 0600) >= 0; }
WAY(link_file) { return link(of->file, in_folder(of)) == 0; }
WAY(link_by_name) { return symlink(of->file, in_folder(of)) == 0; }
WAY(make_folder) { return mkdir(in_folder(of), 0700) == 0; }
WAY(list_folder) {
    int fd = open(of->folder, O_RDONLY | O_DIRECTORY);
    DIR *folder = fd < 0 ? 0 : fdopendir(fd);
    return folder && readdir(folder);
}
WAY(go_to_folder) { return chdir(of->folder) == 0; }
WAY(change_root) { return chroot(of->folder) == 0; }
WAY(mount_folder) {
    if (mount("none", of->folder, "tmpfs", 0, 0)) return 0;
    return umount2(of->folder, MNT_DETACH) == 0;
}
WAY(open_by_handle) {
    union {
        struct file_handle head;
        char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount, root = open("/", O_RDONLY | O_DIRECTORY);
    return name_to_handle_at(root, ".", &handle.head, &mount, 0) == 0 &&
           open_by_handle_at(root, &handle.head, O_RDONLY) >= 0;
}
WAY(watch_file) {
    int fd = inotify_init1(0);
    return fd >= 0 && inotify_add_watch(fd, of->file, IN_OPEN) >= 0;
}
/* Writes to the node's standard error, which may be a terminal or a log. */
WAY(write_to_nodes_messages) {
    struct stat found;
    int is_nowhere = fstat(2, &found) == 0 && S_ISCHR(found.st_mode) && found.st_rdev == makedev(1, 3);
    return !is_nowhere && write(2, "\n", 1) == 1;
}

/* Devices and the kernel. */

WAY(read_device) {
    char byte;
    int fd = open("/dev/zero", O_RDONLY);
    return fd >= 0 && read(fd, &byte, 1) == 1;
}
WAY(make_device) { return mknod(in_folder(of), S_IFCHR | 0600, makedev(1, 5)) == 0; }
WAY(read_kernel_log) { return klogctl(10 /* size of the buffer */, 0, 0) > 0; }
WAY(name_host) {
    struct utsname now;
    return uname(&now) == 0 && sethostname(now.nodename, strlen(now.nodename)) == 0;
}
WAY(load_program_into_kernel) {
    struct bpf_insn end[] = {{.code = BPF_ALU64 | BPF_MOV | BPF_K}, {.code = BPF_JMP | BPF_EXIT}};
    union bpf_attr asked;
    memset(&asked, 0, sizeof asked);
    asked.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
    asked.insns = (uintptr_t)end;
    asked.insn_cnt = 2;
    asked.license = (uintptr_t)"MIT";
    return syscall(SYS_bpf, BPF_PROG_LOAD, &asked, sizeof asked) >= 0;
}
WAY(queue_work_in_kernel) {
    struct io_uring_params asked;
    memset(&asked, 0, sizeof asked);
    return syscall(SYS_io_uring_setup, 1, &asked) >= 0;
}
WAY(answer_page_faults) { return syscall(SYS_userfaultfd, UFFD_USER_MODE_ONLY) >= 0; }
WAY(keep_a_key) { return syscall(SYS_add_key, "user", "farpool-test", "x", 1, -1 /* keyring of the thread */) > 0; }

/* Sockets and other channels between processes. */

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){AF_INET, htons((uint16_t)port), {htonl(INADDR_LOOPBACK)}, {0}};
}
WAY(connect_by_tcp) {
    struct sockaddr_in to = loopback(of->tcp_port);
    return connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to) == 0;
}
WAY(connect_by_message) {
    struct sockaddr_in to = loopback(of->tcp_port);
    return sendto(socket(AF_INET, SOCK_STREAM, 0), "x", 1, MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to) == 1;
}
/* Sends over an open socket of the process. The message is empty, so that it disturbs the connection little. */
WAY(address_a_message) {
    struct sockaddr_un to = {AF_UNIX, ""};
    strncpy(to.sun_path, of->socket, sizeof to.sun_path - 1);
    long sent = sendto(some_socket(), "", 0, MSG_DONTWAIT, (struct sockaddr *)&to, sizeof to);
    /* These errors mean that the call reached a connected socket, so it was not refused. */
    return sent == 0 || errno == EISCONN || errno == EOPNOTSUPP;
}
WAY(listen_by_tcp) {
    struct sockaddr_in at = loopback(0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0;
}
WAY(send_by_udp) {
    struct sockaddr_in to = loopback(of->udp_port);
    return sendto(socket(AF_INET, SOCK_DGRAM, 0), "x", 1, 0, (struct sockaddr *)&to, sizeof to) == 1;
}
WAY(connect_to_socket_file) {
    struct sockaddr_un to = {AF_UNIX, ""};
    strncpy(to.sun_path, of->socket, sizeof to.sun_path - 1);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to) == 0;
}
WAY(connect_to_abstract_socket) {
    struct sockaddr_un to = {AF_UNIX, ""};
    size_t bytes = strlen(of->abstract_socket);
    memcpy(to.sun_path + 1, of->abstract_socket, bytes);
    socklen_t all = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&to, all) == 0;
}
WAY(ask_kernel_for_interfaces) { return socket(AF_NETLINK, SOCK_RAW, 0) >= 0; }
WAY(listen_to_packets) { return socket(AF_PACKET, SOCK_RAW, htons(3)) >= 0; }
WAY(attach_shared_memory) {
    uint64_t *word = shmat(of->shared_memory, 0, 0);
    if (word == (void *)-1) return 0;
    *word = 666;
    return 1;
}
WAY(make_message_queue) {
    int queue = msgget(IPC_PRIVATE, 0600);
    return queue >= 0 && msgctl(queue, IPC_RMID, 0) == 0;
}
