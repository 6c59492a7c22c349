/*
 * Memory of another process, read and written through libfabric: a rival of `farpool bench io --beside libfabric`.
 * Client and server are the same source, so that they always match.
 *
 * The idea: the best performance that libfabric gives a single thread. Both sides poll (FI_PROGRESS_MANUAL), and memory
 * is registered once. A batch is as many fi_read or fi_write operations in flight as the depth says; all of them
 * complete before the next batch starts. A write completes when its bytes are in the memory of the other side
 * (FI_DELIVERY_COMPLETE), not when a socket took them.
 *
 *     PROGRAM serve PROVIDER BYTES
 *     PROGRAM client PROVIDER ADDRESS BASE BYTES FILE
 *
 * bench/src/io/rivals/program.rs describes the commands on standard input, the answers on standard output, and the
 * layout of FILE. Server and client end at the end of their standard input.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* Layout of FILE, as in program.rs. */
#define OPERATIONS_MAX 8192
#define TIMES_AT (64 << 10)
#define BUFFERS_AT (128 << 10)
#define BUFFERS_BYTES ((uint64_t)32 << 20)

#define DEPTH_MAX 1024
#define ADDRESS_BYTES_MAX 256
#define COMPLETIONS_AT_ONCE 64
/* Time limit of an operation, in ns. An operation that takes longer has hung. */
#define PATIENCE_NS ((uint64_t)10000000000)
/* Number of polls of an empty completion queue per reading of the clock. */
#define LOOKS_PER_CLOCK 4096

static void fail(const char *what, const char *why)
{
	printf("failed %s: %s\n", what, why);
	exit(1);
}

static void check(const char *what, ssize_t result)
{
	if (result < 0)
		fail(what, fi_strerror((int)-result));
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec time;
	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t number(const char *text, uint64_t max)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);
	if (end == text || *end != 0 || value > max)
		fail("a number is wrong", text);
	return value;
}

/* Allocates private memory and touches it. */
static void *memory(uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("no memory", "mmap");
	memset(at, 1, bytes);
	return at;
}

/* Client or server: an endpoint, its completion queue, and its registered memory. */
struct end {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *completions;
	struct fid_av *addresses;
	struct fid_ep *endpoint;
	struct fid_mr *registered;
	char *memory;
};

static struct end own;

/* Runs at every exit of the process, because the provider for shared memory must remove its files. */
static void close_own(void)
{
	fi_close(&own.registered->fid);
	fi_close(&own.endpoint->fid);
	fi_close(&own.addresses->fid);
	fi_close(&own.completions->fid);
	fi_close(&own.domain->fid);
	fi_close(&own.fabric->fid);
}

static void open_own(const char *provider, uint64_t bytes, bool is_server)
{
	struct end end = {0};
	bool is_shm = strcmp(provider, "shm") == 0;
	struct fi_info *hints = fi_allocinfo();
	if (hints == NULL)
		fail("fi_allocinfo", "no memory");
	hints->caps = FI_RMA | FI_MSG;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode =
	    FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	hints->fabric_attr->prov_name = strdup(provider);
	if (!is_shm)
		hints->addr_format = FI_SOCKADDR_IN;
	/* FI_SOURCE: the address is that of this side, not of the peer. */
	ssize_t found = fi_getinfo(FI_VERSION(1, 15), is_shm ? NULL : "127.0.0.1", NULL, is_shm ? 0 : FI_SOURCE, hints,
				   &end.info);
	if (found == -FI_ENODATA) {
		printf("failed libfabric %u.%u has no provider %s that can read and write memory\n",
		       FI_MAJOR(fi_version()), FI_MINOR(fi_version()), provider);
		exit(1);
	}
	check("fi_getinfo", found);
	fi_freeinfo(hints);
	check("fi_fabric", fi_fabric(end.info->fabric_attr, &end.fabric, NULL));
	check("fi_domain", fi_domain(end.fabric, end.info, &end.domain, NULL));
	struct fi_cq_attr queue = {
	    .format = FI_CQ_FORMAT_CONTEXT, .size = 2 * DEPTH_MAX, .wait_obj = FI_WAIT_NONE};
	check("fi_cq_open", fi_cq_open(end.domain, &queue, &end.completions, NULL));
	struct fi_av_attr table = {.type = FI_AV_UNSPEC};
	check("fi_av_open", fi_av_open(end.domain, &table, &end.addresses, NULL));
	check("fi_endpoint", fi_endpoint(end.domain, end.info, &end.endpoint, NULL));
	check("fi_ep_bind", fi_ep_bind(end.endpoint, &end.addresses->fid, 0));
	check("fi_ep_bind", fi_ep_bind(end.endpoint, &end.completions->fid, FI_TRANSMIT | FI_RECV));
	check("fi_enable", fi_enable(end.endpoint));
	end.memory = memory(bytes);
	uint64_t access = is_server ? FI_REMOTE_READ | FI_REMOTE_WRITE : FI_READ | FI_WRITE;
	check("fi_mr_reg", fi_mr_reg(end.domain, end.memory, bytes, access, 0, is_server, 0, &end.registered, NULL));
	if (end.info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		check("fi_mr_bind", fi_mr_bind(end.registered, &end.endpoint->fid, 0));
		check("fi_mr_enable", fi_mr_enable(end.registered));
	}
	own = end;
	atexit(close_own);
}

/* Data that a client needs to reach a server. */
struct contact {
	uint64_t key;
	uint64_t start;
	unsigned char name[ADDRESS_BYTES_MAX];
};

static atomic_bool is_input_over;

static void *await_end_of_input(void *unused)
{
	char byte;
	while (read(STDIN_FILENO, &byte, 1) > 0) {
	}
	atomic_store(&is_input_over, true);
	return unused;
}

static int serve(const char *provider, uint64_t bytes)
{
	open_own(provider, bytes, true);
	struct contact contact = {.key = fi_mr_key(own.registered)};
	if (own.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR)
		contact.start = (uint64_t)(uintptr_t)own.memory;
	size_t name_bytes = sizeof contact.name;
	check("fi_getname", fi_getname(&own.endpoint->fid, contact.name, &name_bytes));
	pthread_t waiter;
	if (pthread_create(&waiter, NULL, await_end_of_input, NULL) != 0)
		fail("no thread", "pthread_create");
	printf("ready ");
	for (size_t at = 0; at < sizeof contact; at++)
		printf("%02x", ((unsigned char *)&contact)[at]);
	printf("\n");
	while (!atomic_load_explicit(&is_input_over, memory_order_relaxed)) {
		struct fi_cq_entry entries[COMPLETIONS_AT_ONCE];
		ssize_t got = fi_cq_read(own.completions, entries, COMPLETIONS_AT_ONCE);
		/* A client that ended may leave an error in the queue. No operation here waits for it. */
		struct fi_cq_err_entry error = {0};
		if (got == -FI_EAVAIL)
			fi_cq_readerr(own.completions, &error, 0);
	}
	return 0;
}

/* Line of standard input, read by a separate thread so that `stop` is seen during a burst. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char line[256];
static bool has_line;
/* Number of the first burst (list of operations) that is not stopped. */
static atomic_uint_fast64_t stopped;

static void *hear(void *unused)
{
	char heard[sizeof line];
	while (fgets(heard, sizeof heard, stdin) != NULL) {
		uint64_t burst;
		if (sscanf(heard, "stop %" SCNu64, &burst) == 1) {
			atomic_store(&stopped, burst + 1);
			continue;
		}
		pthread_mutex_lock(&lock);
		while (has_line)
			pthread_cond_wait(&changed, &lock);
		memcpy(line, heard, sizeof line);
		has_line = true;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
	}
	atomic_store(&is_input_over, true);
	atomic_store(&stopped, UINT64_MAX);
	pthread_mutex_lock(&lock);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return unused;
}

/* Waits for the next line. Returns false at the end of input. */
static bool next_line(char *into)
{
	pthread_mutex_lock(&lock);
	while (!has_line && !atomic_load(&is_input_over))
		pthread_cond_wait(&changed, &lock);
	bool is_there = has_line;
	if (is_there)
		memcpy(into, line, sizeof line);
	has_line = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	return is_there;
}

static void load(int file, void *into, uint64_t bytes, uint64_t at)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t got = pread(file, (char *)into + done, bytes - done, (off_t)(at + done));
		if (got <= 0)
			fail("the file of the bench", "it ends too early");
		done += (uint64_t)got;
	}
}

static void store(int file, const void *from, uint64_t bytes, uint64_t at)
{
	for (uint64_t done = 0; done < bytes;) {
		ssize_t got = pwrite(file, (const char *)from + done, bytes - done, (off_t)(at + done));
		if (got <= 0)
			fail("the file of the bench", "it takes no more");
		done += (uint64_t)got;
	}
}

struct client {
	fi_addr_t server;
	uint64_t key;
	/* Start and length of this client's range of the server's memory. */
	uint64_t start;
	uint64_t bytes;
	int file;
	/* Burst (list of reads or of writes) that was prepared last. */
	bool is_write;
	uint64_t block;
	uint64_t count;
	uint64_t calls;
	uint64_t finished;
	uint64_t offsets[OPERATIONS_MAX];
	uint64_t times[OPERATIONS_MAX];
	struct fi_context2 contexts[DEPTH_MAX];
};

static void prepare(struct client *client, const char *said)
{
	char kind[8];
	if (sscanf(said, "prepare %7s %" SCNu64 " %" SCNu64, kind, &client->block, &client->count) != 3 ||
	    client->count > OPERATIONS_MAX || client->block == 0 || client->block > BUFFERS_BYTES ||
	    client->count * client->block > BUFFERS_BYTES)
		fail("not understood", said);
	client->is_write = strcmp(kind, "write") == 0;
	load(client->file, client->offsets, client->count * sizeof client->offsets[0], 0);
	load(client->file, own.memory, client->count * client->block, BUFFERS_AT);
	for (uint64_t at = 0; at < client->count; at++)
		if (client->offsets[at] > client->bytes || client->bytes - client->offsets[at] < client->block)
			fail("an offset lies behind the end", "");
	printf("ok\n");
}

/* Takes completions from the queue. Returns their number. */
static uint64_t reap(void)
{
	struct fi_cq_entry entries[COMPLETIONS_AT_ONCE];
	ssize_t got = fi_cq_read(own.completions, entries, COMPLETIONS_AT_ONCE);
	if (got == -FI_EAVAIL) {
		struct fi_cq_err_entry error = {0};
		fi_cq_readerr(own.completions, &error, 0);
		fail("an operation failed", fi_strerror(error.err));
	}
	if (got == -FI_EAGAIN)
		return 0;
	check("fi_cq_read", got);
	return (uint64_t)got;
}

/* Some providers ignore the flags of the endpoint, so each write repeats them. */
static ssize_t write_one(struct client *client, char *from, void *described, uint64_t to, void *context)
{
	struct iovec local = {.iov_base = from, .iov_len = client->block};
	struct fi_rma_iov remote = {.addr = to, .len = client->block, .key = client->key};
	struct fi_msg_rma message = {.msg_iov = &local,
				     .desc = &described,
				     .iov_count = 1,
				     .addr = client->server,
				     .rma_iov = &remote,
				     .rma_iov_count = 1,
				     .context = context};
	return fi_writemsg(own.endpoint, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* Runs `count` operations from `first` on, all in flight at once. */
static void batch(struct client *client, uint64_t first, uint64_t count)
{
	void *described = fi_mr_desc(own.registered);
	uint64_t posted = 0, done = 0, looks = 0, begun = 0;
	while (done < count) {
		while (posted < count) {
			uint64_t index = first + posted;
			char *buffer = own.memory + index * client->block;
			uint64_t at = client->start + client->offsets[index];
			void *context = &client->contexts[posted];
			ssize_t result = client->is_write
			    ? write_one(client, buffer, described, at, context)
			    : fi_read(own.endpoint, buffer, client->block, described, client->server, at,
				      client->key, context);
			if (result == -FI_EAGAIN)
				break;
			check(client->is_write ? "fi_write" : "fi_read", result);
			posted++;
		}
		uint64_t reaped = reap();
		done += reaped;
		if (reaped > 0) {
			looks = 0;
			begun = 0;
		} else if (++looks % LOOKS_PER_CLOCK == 0) {
			uint64_t now = clock_ns(CLOCK_MONOTONIC);
			if (begun == 0)
				begun = now;
			if (now - begun > PATIENCE_NS)
				fail("an operation", "no answer within 10 s");
			if (atomic_load_explicit(&is_input_over, memory_order_relaxed))
				exit(1);
		}
	}
}

static void go(struct client *client, const char *said)
{
	uint64_t burst, depth, least, limit_ns;
	if (sscanf(said, "go %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64, &burst, &depth, &least, &limit_ns) != 4 ||
	    depth == 0 || depth > DEPTH_MAX)
		fail("not understood", said);
	client->calls = 0;
	client->finished = 0;
	uint64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
	uint64_t begun = clock_ns(CLOCK_MONOTONIC), last = begun;
	while (client->finished < client->count) {
		uint64_t left = client->count - client->finished;
		uint64_t count = left < depth ? left : depth;
		batch(client, client->finished, count);
		client->finished += count;
		uint64_t now = clock_ns(CLOCK_MONOTONIC);
		client->times[client->calls++] = now - last;
		last = now;
		bool is_enough = client->finished >= least;
		if (is_enough &&
		    (now - begun >= limit_ns || atomic_load_explicit(&stopped, memory_order_relaxed) > burst))
			break;
	}
	cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("ok %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", client->finished, client->calls,
	       begun, last, cpu);
}

static void collect(struct client *client)
{
	store(client->file, client->times, client->calls * sizeof client->times[0], TIMES_AT);
	if (!client->is_write)
		store(client->file, own.memory, client->finished * client->block, BUFFERS_AT);
	printf("ok\n");
}

static int be_client(char **args)
{
	static struct client client;
	struct contact contact;
	open_own(args[0], BUFFERS_BYTES, false);
	if (strlen(args[1]) != 2 * sizeof contact)
		fail("no address", args[1]);
	for (size_t at = 0; at < sizeof contact; at++)
		if (sscanf(args[1] + 2 * at, "%2hhx", (unsigned char *)&contact + at) != 1)
			fail("no address", args[1]);
	if (fi_av_insert(own.addresses, contact.name, 1, &client.server, 0, NULL) != 1)
		fail("fi_av_insert", "the address was not taken");
	client.key = contact.key;
	client.start = contact.start + number(args[2], UINT64_MAX);
	client.bytes = number(args[3], UINT64_MAX);
	client.file = open(args[4], O_RDWR);
	if (client.file < 0)
		fail(args[4], "it cannot be opened");
	/* The first operation establishes the connection. */
	client.block = 8;
	client.count = 1;
	batch(&client, 0, 1);
	pthread_t hearer;
	if (pthread_create(&hearer, NULL, hear, NULL) != 0)
		fail("no thread", "pthread_create");
	printf("ready\n");
	char said[sizeof line];
	while (next_line(said)) {
		if (strncmp(said, "prepare ", 8) == 0)
			prepare(&client, said);
		else if (strncmp(said, "go ", 3) == 0)
			go(&client, said);
		else if (strncmp(said, "collect", 7) == 0)
			collect(&client);
		else
			fail("not understood", said);
	}
	return 0;
}

int main(int count, char **args)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count == 4 && strcmp(args[1], "serve") == 0)
		return serve(args[2], number(args[3], UINT64_MAX));
	if (count == 7 && strcmp(args[1], "client") == 0)
		return be_client(args + 2);
	fprintf(stderr, "usage: %s serve PROVIDER BYTES | client PROVIDER ADDRESS BASE BYTES FILE\n", args[0]);
	return 2;
}
