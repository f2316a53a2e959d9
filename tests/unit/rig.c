/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The engine's test rig: see rig.h. */
#include "rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t host_now(void *host)
{
	struct rig *r = host;

	/* A little passes at each look, as it does in the world; loops with a timeout end. */
	return atomic_fetch_add(&r->now, 1) + 1;
}

static void host_log(void *host, enum dc_log_level level, const char *text)
{
	struct rig *r = host;

	snprintf(r->last_log, sizeof(r->last_log), "%s", text);
	atomic_fetch_add(&r->logged, 1);
	if (level == DC_LOG_ERROR)
		atomic_fetch_add(&r->errors_logged, 1);
}

static void host_resume(void *host, void *connection)
{
	struct rig *r = host;

	r->last_resumed = connection;
	atomic_fetch_add(&r->resumed, 1);
}

static const struct dc_host_ops host_ops = { host_now, host_log, host_resume };

struct rig *rig_new(const struct rig_options *opt)
{
	struct dc_engine_options eo = { .executors = opt->executors,
					.max_open_files = opt->max_open_files,
					.threads = opt->threads,
					.law = opt->law,
					.dirty_bytes = opt->dirty_bytes };
	struct rig *r = dc_zalloc(sizeof(*r));
	const char *tmp = getenv("TMPDIR");
	int err;

	snprintf(r->dir, sizeof(r->dir), "%.40s/dcunit.XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(r->dir));
	r->now = 1000 * SEC;
	r->eng = dc_engine_new(&host_ops, r, &eo);
	r->dev = (opt->faulty ? dc_device_get_faulty :
				dc_device_get)(r->eng, 1, opt->make ? opt->make : fake_make, &err);
	assert_non_null(r->dev);
	if (!opt->make) {
		r->fake = fake_made;
		if (!opt->threads)
			r->fake->clock = &r->now;
	}
	dc_params_defaults(&r->params);
	r->params.dirty_bytes = opt->limit ? opt->limit : 64 * MiB;
	r->params.dirty_background_bytes = opt->background ? opt->background : 16 * MiB;
	r->exp = dc_export_new(r->dev, 7, "/rig", &r->params);
	return r;
}

static void remove_dir(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;

	assert_non_null(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
	rmdir(path);
}

void rig_free_engine(struct rig *r)
{
	dc_engine_free(r->eng);
	remove_dir(r->dir);
	free(r);
}

void rig_free(struct rig *r)
{
	struct dc_export_stats st;

	if (r->fake) {
		pthread_mutex_lock(&r->fake->lock);
		r->fake->hold = 0;
		pthread_mutex_unlock(&r->fake->lock);
		fake_release(r->fake, UINT32_MAX, 0);
	}
	assert_int_equal(dc_export_drain(r->exp, 60 * SEC), 0);
	st = rig_stats(r);
	assert_int_equal(st.dirty, 0);
	assert_int_equal(st.writeback, 0);
	assert_int_equal(st.reserved, 0);
	assert_int_equal(st.dirty_files, 0);
	assert_int_equal(st.parked, 0);
	assert_int_equal(st.parked_bytes, 0);
	assert_int_equal(st.parked_connections, 0);
	assert_int_equal(st.held, 0);
	assert_true(dc_export_free(r->exp, 60 * SEC));
	rig_free_engine(r);
}

int rig_open(struct rig *r, unsigned int n)
{
	char path[96];
	int fd;

	snprintf(path, sizeof(path), "%s/%u", r->dir, n);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	return fd;
}

void rig_unlink(struct rig *r, unsigned int n)
{
	char path[96];

	snprintf(path, sizeof(path), "%s/%u", r->dir, n);
	assert_int_equal(unlink(path), 0);
}

struct dc_file *rig_file(struct rig *r, unsigned int n)
{
	struct dc_file *file = dc_file_get(r->exp, &n, sizeof(n));

	if (dc_write_begin(file))
		dc_write_unpin(file);
	else
		dc_file_set_fd(file, rig_open(r, n));
	return file;
}

void rig_begin(struct rig *r, struct dc_file *file)
{
	unsigned int n;

	memcpy(&n, file->key, sizeof(n));
	while (!dc_write_begin(file))
		dc_file_set_fd(file, rig_open(r, n));
}

void rig_write(struct rig *r, struct dc_file *file, uint64_t offset, uint64_t len, uint64_t client)
{
	while (len > 0) {
		uint64_t n = dc_min_u64(len, DC_MAX_WRITE);
		uint64_t pages = dc_write_pages(offset, n);

		assert_true(dc_admit(r->exp, pages));
		rig_begin(r, file);
		dc_write_done(file, offset, n, pages, DC_CLIENT(client, 0), dc_file_errors(file),
			      false);
		offset += n;
		len -= n;
	}
}

int rig_commit(struct rig *r, struct dc_file *file, uint64_t client)
{
	int res;

	rig_begin(r, file);
	res = dc_commit(file, DC_CLIENT(client, 0), 0, 0);
	dc_write_unpin(file);
	return res;
}

void rig_poll(struct rig *r, unsigned int n)
{
	while (n--)
		dc_device_poll(r->dev, 0);
}

void rig_pass(struct rig *r, uint64_t ns)
{
	atomic_fetch_add(&r->now, ns);
	dc_device_poll(r->dev, 0);
}

void rig_settle(struct rig *r)
{
	unsigned int before, after = r->fake->nr_calls;

	do {
		before = after;
		rig_poll(r, 2);
		after = r->fake->nr_calls;
	} while (after != before || r->fake->done);
}

struct dc_export_stats rig_stats(struct rig *r)
{
	struct dc_export_stats st;

	dc_export_stats(r->exp, &st);
	return st;
}

uint64_t rig_counter(struct rig *r, enum dc_counter id)
{
	return rig_stats(r).counters[id];
}

void rig_check_sum(struct rig *r, uint64_t reserved_pages)
{
	uint64_t used = atomic_load(&r->exp->used), stash = 0;

	for (unsigned int i = 0; i < r->exp->nr_slots; i++)
		stash += atomic_load(&r->exp->slots[i].stash);
	assert_int_equal(used, dc_dirty_pages(r->exp) + atomic_load(&r->exp->writeback) +
				       reserved_pages + stash);
}

uint64_t rig_real_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * SEC + (uint64_t)ts.tv_nsec;
}

void rig_await(bool (*cond)(void *arg), void *arg, const char *what)
{
	const struct timespec nap = { .tv_nsec = 1000000 };
	uint64_t start = rig_real_ns();

	while (!cond(arg)) {
		if (rig_real_ns() - start > 60 * SEC) {
			print_error("waited a minute for: %s\n", what);
			fail();
		}
		nanosleep(&nap, NULL);
	}
}

static const char *watched;

static void too_late(int sig)
{
	ssize_t rc;

	(void)sig;
	rc = write(STDERR_FILENO, "watchdog: still running: ", 25);
	rc += write(STDERR_FILENO, watched, strlen(watched));
	rc += write(STDERR_FILENO, "\n", 1);
	(void)rc;
	_exit(1);
}

void rig_watchdog(unsigned int seconds, const char *what)
{
	watched = what;
	signal(SIGALRM, too_late);
	alarm(seconds);
}
