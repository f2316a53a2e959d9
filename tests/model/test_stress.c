/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The stress: many threads write, commit, truncate and unlink the same few files at once, on the
 * plain-threads backend and a real file system. Meant for ThreadSanitizer; anywhere, it must end
 * with every counter at zero and every byte in its place. Now and then whoever is about to take a lock
 * lets others go first, so that rare orders of events become common ones.
 *
 *     test_stress [--writes N] [--seed N] [--uring]
 *
 * What a page must hold is known because each page belongs to one thread (page number modulo
 * threads), which stamps it with its number and a version. Truncation takes a file's lock
 * exclusively, writing shared; the engine is told outside of it, so that its calls do race.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define THREADS 6
#define FILES 3
#define PAGES 4096 /* of a file: 16 MiB */

#define must(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__,      \
				#cond, errno);                                                     \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* One incarnation of a file; unlinking replaces it. */
struct sfile {
	unsigned int nr;
	char path[96];
	pthread_rwlock_t lock; /* writers shared, truncation exclusive */
	_Atomic uint32_t refs; /* threads that use it, and its slot */
	_Atomic bool unlinked;
	uint32_t version[PAGES]; /* 0: a hole */
	int fd;			 /* the "sub-FSAL's", for the data */
	struct dc_file *file;
};

static struct dc_engine *eng;
static struct dc_device *dev;
static struct dc_export *ex;
static char dir[64];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sfile *slot[FILES];
static unsigned int next_nr;
static unsigned int writes = 300;
static uint64_t first_seed = 1;
static _Atomic uint64_t commits, stables, truncs, unlinks, parks;

struct thread {
	unsigned int nr;
	uint64_t seed;
	uint32_t version;
	pthread_t thread;
	struct dc_waiter w;
	sem_t ran;
};

static uint64_t rnd(struct thread *t, uint64_t n)
{
	t->seed ^= t->seed >> 12;
	t->seed ^= t->seed << 25;
	t->seed ^= t->seed >> 27;
	return (t->seed * 0x2545f4914f6cdd1dULL >> 16) % n;
}

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	static _Thread_local uint64_t s;

	if (s == 0)
		s = first_seed ^ (uintptr_t)&s;
	s = s * 6364136223846793005ULL + 1442695040888963407ULL;
	if (s >> 58 == 0)
		sched_yield();
	else if (s >> 54 == 16)
		usleep((useconds_t)(s >> 40 & 127));
	return __real_pthread_mutex_lock(lock);
}

static void maybe_yield(struct thread *t)
{
	if (rnd(t, 4) == 0)
		sched_yield();
}

/* ---- the owner's side ---- */

static uint64_t host_now(void *host)
{
	struct timespec ts;

	(void)host;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * DC_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static void host_log(void *host, enum dc_log_level level, const char *text)
{
	(void)host;
	if (level == DC_LOG_ERROR)
		fprintf(stderr, "engine: %s\n", text);
}

static const struct dc_host_ops host_ops = { host_now, host_log, NULL };

static struct sfile *sfile_new(void)
{
	struct sfile *f = dc_zalloc(sizeof(*f));

	f->nr = next_nr++;
	f->refs = 1;
	snprintf(f->path, sizeof(f->path), "%s/%u", dir, f->nr);
	f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	must(f->fd >= 0);
	pthread_rwlock_init(&f->lock, NULL);
	f->file = dc_file_get(ex, &f->nr, sizeof(f->nr));
	return f;
}

static void sfile_put(struct sfile *f)
{
	if (atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	dc_file_put(f->file);
	close(f->fd);
	pthread_rwlock_destroy(&f->lock);
	free(f);
}

static struct sfile *sfile_get(struct thread *t)
{
	struct sfile *f;

	pthread_mutex_lock(&slots_lock);
	f = slot[rnd(t, FILES)];
	atomic_fetch_add(&f->refs, 1);
	pthread_mutex_unlock(&slots_lock);
	return f;
}

static void pin(struct sfile *f)
{
	while (!dc_write_begin(f->file)) {
		int fd = open(f->path, O_RDWR | O_CLOEXEC);

		if (fd < 0) /* unlinked: what is open stays usable */
			fd = dup(f->fd);
		must(fd >= 0);
		dc_file_set_fd(f->file, fd);
	}
}

/* ---- what threads do ---- */

struct swrite {
	struct dc_stable s;
	sem_t done;
};

static void stable_done(struct dc_stable *s, int res)
{
	must(res == 0);
	sem_post(&container_of_dc(s, struct swrite, s)->done);
}

/* Nothing of the write is dirty any more when it is answered. */
static void do_stable(struct thread *t, struct sfile *f, uint64_t offset, uint64_t len, bool begun)
{
	struct swrite w = {
		.s = { .offset = offset, .len = len, .begun = begun, .done = stable_done }
	};

	w.s.client = DC_CLIENT(t->nr, 0);
	w.s.errors = dc_file_errors(f->file);
	sem_init(&w.done, 0, 0);
	dc_stable_sync(f->file, &w.s);
	while (sem_wait(&w.done) < 0)
		;
	sem_destroy(&w.done);
	atomic_fetch_add(&stables, 1);
}

static void ran(struct dc_waiter *w, int status)
{
	struct thread *t = container_of_dc(w, struct thread, w);

	must(status == 0);
	sem_post(&t->ran);
}

static void admit(struct thread *t, uint64_t pages)
{
	enum dc_parking answer;

	if (dc_admit(ex, pages))
		return;
	t->w = (struct dc_waiter){
		.pages = pages, .bytes = pages << DC_PAGE_SHIFT, .connection = t, .run = ran
	};
	answer = dc_park(ex, &t->w);
	must(answer != DC_REFUSED);
	atomic_fetch_add(&parks, 1);
	if (answer != DC_ADMITTED)
		while (sem_wait(&t->ran) < 0)
			;
}

/* Stamps the thread's own pages in [first, first + n): as one write of the whole range would, but
 * for the pages of others, which keep what they have. */
static void do_write(struct thread *t)
{
	static _Thread_local char page[DC_PAGE_SIZE];
	struct sfile *f = sfile_get(t);
	uint64_t n = 1 + rnd(t, rnd(t, 4) ? 8 : 200), first = rnd(t, PAGES - n + 1), reserved = n;
	uint64_t offset = first << DC_PAGE_SHIFT, len = n << DC_PAGE_SHIFT;
	bool stable = rnd(t, 5) == 0, failed = rnd(t, 32) == 0, begun = false;

	if (rnd(t, 8) == 0) {
		pin(f);
		reserved = dc_write_need(f->file, offset, len);
		dc_write_unpin(f->file);
	}
	admit(t, reserved);
	maybe_yield(t);
	pin(f);
	if (stable)
		begun = dc_stable_begin(f->file);
	pthread_rwlock_rdlock(&f->lock);
	t->version++;
	for (uint64_t p = first; p < first + n; p++) {
		if (p % THREADS != t->nr)
			continue;
		memset(page, (int)t->version, sizeof(page));
		memcpy(page, &t->version, sizeof(t->version));
		must(pwrite(f->fd, page, sizeof(page), (off_t)(p << DC_PAGE_SHIFT)) ==
		     (ssize_t)sizeof(page));
		f->version[p] = t->version;
	}
	pthread_rwlock_unlock(&f->lock);
	maybe_yield(t);
	if (failed)
		dc_write_done(f->file, offset, 0, reserved, DC_CLIENT(t->nr, 0),
			      dc_file_errors(f->file), false); /* as if it had failed */
	else
		dc_write_done(f->file, offset, len, reserved, DC_CLIENT(t->nr, 0),
			      dc_file_errors(f->file), stable);
	if (stable && !failed)
		do_stable(t, f, offset, len, begun);
	sfile_put(f);
}

static void do_commit(struct thread *t)
{
	struct sfile *f = sfile_get(t);
	int err = 0;

	if (!dc_commit_is_free(f->file, DC_CLIENT(t->nr, 0), &err)) {
		pin(f);
		err = rnd(t, 2) ? dc_commit(f->file, DC_CLIENT(t->nr, 0), 0, 0) :
				  dc_commit(f->file, DC_CLIENT(t->nr, 0),
					    rnd(t, PAGES) << DC_PAGE_SHIFT, 1 + rnd(t, 1 << 20));
		dc_write_unpin(f->file);
	}
	must(err == 0);
	atomic_fetch_add(&commits, 1);
	sfile_put(f);
}

static void do_truncate(struct thread *t)
{
	struct sfile *f = sfile_get(t);
	uint64_t pages = rnd(t, PAGES), seq = dc_file_seq(f->file);

	pthread_rwlock_wrlock(&f->lock);
	must(ftruncate(f->fd, (off_t)(pages << DC_PAGE_SHIFT)) == 0);
	memset(&f->version[pages], 0, (PAGES - pages) * sizeof(f->version[0]));
	pthread_rwlock_unlock(&f->lock);
	maybe_yield(t);
	dc_file_truncated(f->file, pages << DC_PAGE_SHIFT, seq);
	atomic_fetch_add(&truncs, 1);
	sfile_put(f);
}

static void do_unlink(struct thread *t)
{
	unsigned int i = (unsigned int)rnd(t, FILES);
	struct sfile *f;

	pthread_mutex_lock(&slots_lock);
	f = slot[i];
	slot[i] = sfile_new();
	pthread_mutex_unlock(&slots_lock);
	unlink(f->path);
	maybe_yield(t);
	if (rnd(t, 2))
		dc_file_check_links(f->file);
	atomic_fetch_add(&unlinks, 1);
	sfile_put(f);
}

/* The handle goes, and another comes for the same file. */
static void do_evict(struct thread *t)
{
	struct sfile *f = sfile_get(t);
	struct dc_file *again = dc_file_get(ex, &f->nr, sizeof(f->nr));

	must(again == f->file);
	dc_file_put(again);
	again = dc_file_find(ex, &f->nr, sizeof(f->nr));
	must(again == f->file);
	dc_file_put(again);
	sfile_put(f);
}

static void do_limit(struct thread *t)
{
	struct dc_export_stats st;
	struct dc_params p;

	dc_export_get_params(ex, &p);
	p.dirty_bytes = (4 + rnd(t, 8)) << 20;
	p.dirty_background_bytes = rnd(t, 2) ? 0 : 1 << 20;
	p.drop_behind = rnd(t, 4) != 0;
	dc_export_set_params(ex, &p);
	dc_export_stats(ex, &st);
	must(st.used <= 12 << 20);
}

static void *thread_main(void *arg)
{
	struct thread *t = arg;

	for (unsigned int i = 0; i < writes; i++) {
		uint64_t what = rnd(t, 100);

		do_write(t);
		if (what < 10)
			do_commit(t);
		else if (what < 14)
			do_truncate(t);
		else if (what < 16)
			do_unlink(t);
		else if (what < 20)
			do_evict(t);
		else if (what < 22)
			do_limit(t);
	}
	return NULL;
}

/* ---- the end ---- */

static void verify(const struct sfile *f)
{
	static char page[DC_PAGE_SIZE];
	int fd = open(f->path, O_RDONLY | O_CLOEXEC);
	uint64_t checked = 0;

	must(fd >= 0);
	for (uint64_t p = 0; p < PAGES; p++) {
		ssize_t n = pread(fd, page, sizeof(page), (off_t)(p << DC_PAGE_SHIFT));
		uint32_t version = 0;

		must(n == 0 || n == (ssize_t)sizeof(page));
		if (n > 0)
			memcpy(&version, page, sizeof(version));
		if (version != f->version[p]) {
			fprintf(stderr, "file %u page %llu: version %u, not %u\n", f->nr,
				(unsigned long long)p, version, f->version[p]);
			exit(1);
		}
		for (size_t i = sizeof(version); n > 0 && i < sizeof(page); i++)
			must(page[i] == (char)version);
		checked += n > 0;
	}
	close(fd);
	printf("file %u: %llu pages verified\n", f->nr, (unsigned long long)checked);
}

static void too_late(int sig)
{
	(void)sig;
	(void)!write(STDERR_FILENO, "watchdog: the stress hangs\n", 27);
	_exit(1);
}

int main(int argc, char **argv)
{
	static const struct option options[] = { { "writes", required_argument, NULL, 'w' },
						 { "seed", required_argument, NULL, 's' },
						 { "uring", no_argument, NULL, 'u' },
						 { NULL, 0, NULL, 0 } };
	struct dc_backend *(*make)(int *err) = dc_backend_threads;
	struct dc_engine_options eo = { .executors = 2,
					.max_open_files = 5,
					.threads = true,
					.law = dc_pace_linear,
					.dirty_bytes = 6 << 20 };
	const char *tmp = getenv("TMPDIR");
	struct thread t[THREADS] = { 0 };
	struct dc_export_stats st;
	struct dc_params params;
	int o, err;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (o == 'w')
			writes = (unsigned int)strtoul(optarg, NULL, 0);
		else if (o == 's')
			first_seed = strtoull(optarg, NULL, 0);
		else if (o == 'u')
			make = dc_backend_uring;
		else
			return 2;
	}
	signal(SIGALRM, too_late);
	alarm(280);
	snprintf(dir, sizeof(dir), "%.40s/dcstress.XXXXXX", tmp ? tmp : "/tmp");
	must(mkdtemp(dir));
	eng = dc_engine_new(&host_ops, NULL, &eo);
	dev = dc_device_get(eng, 1, make, &err);
	must(dev);
	dc_params_defaults(&params);
	params.dirty_bytes = 8 << 20;
	params.dirty_expire_centisecs = 10;
	ex = dc_export_new(dev, 1, "/stress", &params);
	for (int i = 0; i < FILES; i++)
		slot[i] = sfile_new();
	printf("seed %llu\n", (unsigned long long)first_seed);
	for (unsigned int i = 0; i < THREADS; i++) {
		t[i].nr = i;
		t[i].seed = (first_seed + i) * 0x9e3779b97f4a7c15ULL;
		sem_init(&t[i].ran, 0, 0);
		must(pthread_create(&t[i].thread, NULL, thread_main, &t[i]) == 0);
	}
	for (unsigned int i = 0; i < THREADS; i++) {
		pthread_join(t[i].thread, NULL);
		sem_destroy(&t[i].ran);
	}
	printf("%llu COMMITs, %llu stable writes, %llu truncations, %llu unlinks, %llu parked writes\n",
	       (unsigned long long)commits, (unsigned long long)stables, (unsigned long long)truncs,
	       (unsigned long long)unlinks, (unsigned long long)parks);
	must(dc_export_drain(ex, 60 * DC_NS_PER_S) == 0);
	for (int i = 0; i < FILES; i++) {
		verify(slot[i]);
		unlink(slot[i]->path);
		sfile_put(slot[i]);
	}
	dc_export_stats(ex, &st);
	must(st.dirty == 0 && st.writeback == 0 && st.reserved == 0 && st.dirty_files == 0);
	must(st.parked == 0 && st.parked_bytes == 0 && st.held == 0);
	must(dc_export_free(ex, 60 * DC_NS_PER_S));
	dc_engine_free(eng);
	must(rmdir(dir) == 0);
	return 0;
}
