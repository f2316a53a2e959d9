/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * A real backend on a real file: what is asked for is done and comes back, errors included, and the
 * engine on top of it brings data to the file and its counters to zero. Compiled twice: for plain
 * threads and, with TEST_URING, for io_uring.
 */
#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TEST_URING
#define MAKE dc_backend_uring
#else
#define MAKE dc_backend_threads
#endif

static char path[96];

static int open_temp(void)
{
	const char *tmp = getenv("TMPDIR");
	int fd;

	snprintf(path, sizeof(path), "%.60s/dcbackend.XXXXXX", tmp ? tmp : "/tmp");
	fd = mkstemp(path);
	assert_true(fd >= 0);
	return fd;
}

static void close_temp(int fd)
{
	close(fd);
	unlink(path);
}

static struct dc_backend *new_backend(void)
{
	struct dc_backend *be;
	int err;

	be = MAKE(&err);
	assert_non_null(be);
	assert_int_equal(err, 0);
	return be;
}

/* Collects until `n` operations are done. */
static unsigned int collect(struct dc_backend *be, unsigned int n, struct dc_op **list)
{
	unsigned int got = 0;

	*list = NULL;
	while (got < n) {
		struct dc_op *op = be->ops->wait(be, -1);

		while (op) {
			struct dc_op *next = op->next;

			op->next = *list;
			*list = op;
			op = next;
			got++;
		}
	}
	return got;
}

static void test_operations(void **state)
{
	struct dc_backend *be = new_backend();
	int fd = open_temp();
	static const enum dc_op_kind kinds[] = { DC_OP_WRITEBACK, DC_OP_SYNC, DC_OP_DROP };
	struct dc_op op[30] = { 0 }, *list;
	static char buf[4 << 20];
	struct dc_cachestat st;

	(void)state;
	memset(buf, 'x', sizeof(buf));
	assert_int_equal(pwrite(fd, buf, sizeof(buf), 0), sizeof(buf));
	for (int i = 0; i < 30; i++) {
		op[i].kind = kinds[i % 3];
		op[i].fd = fd;
		op[i].offset = (uint64_t)i * 100000;
		op[i].len = op[i].kind == DC_OP_SYNC ? 0 : 1 << 20;
		op[i].res = 12345;
		be->ops->submit(be, &op[i]);
	}
	assert_int_equal(collect(be, 30, &list), 30);
	for (int i = 0; i < 30; i++)
		assert_int_equal(op[i].res, 0);
	assert_int_equal(be->ops->writeback(be, fd, 0, sizeof(buf)), 0);
	assert_int_equal(be->ops->sync(be, fd), 0);
	be->ops->drop(be, fd, 0, sizeof(buf));
	if (be->ops->cachestat && be->ops->cachestat(be, fd, 0, sizeof(buf), &st) == 0) {
		assert_int_equal(st.dirty, 0);
		assert_int_equal(st.writeback, 0);
	}
	memset(buf, 0, sizeof(buf));
	assert_int_equal(pread(fd, buf, sizeof(buf), 0), sizeof(buf));
	for (size_t i = 0; i < sizeof(buf); i++)
		if (buf[i] != 'x')
			fail();
	close_temp(fd);
	be->ops->free(be);
}

/* After a writeback is done, nothing of its range is dirty or under writeback any more. */
static void test_writeback_is_complete(void **state)
{
	struct dc_backend *be = new_backend();
	int fd = open_temp();
	static char buf[1 << 20];
	struct dc_cachestat st;

	(void)state;
	if (!be->ops->cachestat || be->ops->cachestat(be, fd, 0, 4096, &st) < 0)
		goto out;
	for (int round = 0; round < 5; round++) {
		struct dc_op op = { .kind = DC_OP_WRITEBACK, .fd = fd, .len = 8 << 20 }, *list;

		memset(buf, round, sizeof(buf));
		for (int i = 0; i < 8; i++)
			assert_int_equal(pwrite(fd, buf, sizeof(buf), (off_t)i << 20), sizeof(buf));
		be->ops->submit(be, &op);
		collect(be, 1, &list);
		assert_int_equal(op.res, 0);
		assert_int_equal(be->ops->cachestat(be, fd, 0, 8 << 20, &st), 0);
		assert_int_equal(st.dirty, 0);
		assert_int_equal(st.writeback, 0);
	}
out:
	close_temp(fd);
	be->ops->free(be);
}

static void test_errors_come_back(void **state)
{
	struct dc_backend *be = new_backend();
	int fd = open_temp();
	struct dc_op bad[2] = { { .kind = DC_OP_WRITEBACK, .len = 4096 }, { .kind = DC_OP_SYNC } };
	struct dc_op *list;
	int pipes[2];

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	bad[0].fd = pipes[0];
	bad[1].fd = pipes[0];
	for (int i = 0; i < 2; i++)
		be->ops->submit(be, &bad[i]);
	collect(be, 2, &list);
	assert_int_equal(bad[0].res, -ESPIPE);
	assert_int_equal(bad[1].res, -EINVAL);
	assert_int_equal(be->ops->sync(be, pipes[0]), -EINVAL);
	assert_int_equal(be->ops->writeback(be, pipes[0], 0, 4096), -ESPIPE);
	close(pipes[0]);
	close(pipes[1]);
	close_temp(fd);
	be->ops->free(be);
}

/* A sparse turn may span more than 4 GiB: whatever is in it must be written. */
static void test_long_range(void **state)
{
	struct dc_backend *be = new_backend();
	int fd = open_temp();
	struct dc_op op = { .kind = DC_OP_WRITEBACK, .fd = fd, .len = 20ULL << 30 }, *list;
	struct dc_cachestat st;

	(void)state;
	assert_int_equal(pwrite(fd, "a", 1, 0), 1);
	assert_int_equal(pwrite(fd, "b", 1, (off_t)19 << 30), 1);
	be->ops->submit(be, &op);
	collect(be, 1, &list);
	assert_int_equal(op.res, 0);
	if (be->ops->cachestat && be->ops->cachestat(be, fd, 0, 20ULL << 30, &st) == 0)
		assert_int_equal(st.dirty, 0);
	op.kind = DC_OP_DROP;
	be->ops->submit(be, &op);
	collect(be, 1, &list);
	assert_int_equal(op.res, 0);
	close_temp(fd);
	be->ops->free(be);
}

static void *waker(void *arg)
{
	struct dc_backend *be = arg;

	for (int i = 0; i < 1000; i++)
		be->ops->wake(be);
	return NULL;
}

static void test_wake(void **state)
{
	struct dc_backend *be = new_backend();
	pthread_t thread;

	(void)state;
	rig_watchdog(60, "wait() that wake() should have ended");
	/* Before the wait: it ends at once. */
	be->ops->wake(be);
	assert_null(be->ops->wait(be, -1));
	for (int i = 0; i < 20; i++) {
		be->ops->wake(be);
		be->ops->wake(be);
		assert_null(be->ops->wait(be, -1));
		assert_null(be->ops->wait(be, 0));
	}
	assert_null(be->ops->wait(be, 1000000));
	/* From another thread, during it: the last of the wakes ends some wait. */
	assert_int_equal(pthread_create(&thread, NULL, waker, be), 0);
	assert_null(be->ops->wait(be, -1));
	pthread_join(thread, NULL);
	while (be->ops->wait(be, 0))
		;
	be->ops->wake(be);
	assert_null(be->ops->wait(be, -1));
	be->ops->free(be);
	alarm(0);
}

/* More operations than the ring has entries. */
static void test_many(void **state)
{
	enum { N = 1000 };
	struct dc_backend *be = new_backend();
	int fd = open_temp();
	static struct dc_op op[N];
	struct dc_op *list;

	(void)state;
	for (int i = 0; i < N; i++) {
		op[i] = (struct dc_op){ .kind = i % 2 ? DC_OP_DROP : DC_OP_WRITEBACK,
					.fd = fd,
					.offset = (uint64_t)i << 12,
					.len = 4096,
					.res = 1 };
		be->ops->submit(be, &op[i]);
	}
	assert_int_equal(collect(be, N, &list), N);
	for (int i = 0; i < N; i++)
		assert_int_equal(op[i].res, 0);
	close_temp(fd);
	be->ops->free(be);
}

/* The engine on it: write, let it flush, commit, read back. */
static void test_engine_on_it(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .threads = true,
						       .executors = 2,
						       .limit = 16 * MiB,
						       .background = 4 * MiB,
						       .make = MAKE });
	struct dc_file *file[3];
	static char buf[1 << 20], got[1 << 20];

	(void)state;
	rig_watchdog(100, "the engine on a real backend");
	for (unsigned int i = 0; i < 3; i++)
		file[i] = rig_file(r, i);
	for (unsigned int n = 0; n < 60; n++) {
		struct dc_file *f = file[n % 3];
		uint64_t off = (uint64_t)(n / 3) << 20;

		memset(buf, (int)n, sizeof(buf));
		while (!dc_admit(r->exp, 256))
			usleep(200);
		rig_begin(r, f);
		assert_int_equal(pwrite(f->fd, buf, sizeof(buf), (off_t)off), sizeof(buf));
		dc_write_done(f, off, sizeof(buf), 256, n % 3, dc_file_errors(f), false);
		if (n % 20 == 19)
			assert_int_equal(rig_commit(r, f, n % 3), 0);
	}
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(rig_commit(r, file[i], i), 0);
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	for (unsigned int n = 0; n < 60; n++) {
		int fd = rig_open(r, n % 3);

		memset(buf, (int)n, sizeof(buf));
		assert_int_equal(pread(fd, got, sizeof(got), (off_t)(n / 3) << 20), sizeof(got));
		assert_memory_equal(buf, got, sizeof(got));
		close(fd);
	}
	for (unsigned int i = 0; i < 3; i++)
		dc_file_put(file[i]);
	rig_free(r);
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_operations),
		cmocka_unit_test(test_writeback_is_complete),
		cmocka_unit_test(test_errors_come_back),
		cmocka_unit_test(test_long_range),
		cmocka_unit_test(test_wake),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_engine_on_it),
	};
	struct dc_backend *be;
	int err;

	be = MAKE(&err);
	if (!be) {
		printf("skipped: this backend is refused here: %s\n", strerror(-err));
		return 77;
	}
	be->ops->free(be);
	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
