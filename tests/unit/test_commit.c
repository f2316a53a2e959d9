/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * COMMIT: no I/O when there is nothing to do, one fdatasync for many, never "durable" for what a
 * sync did not cover, and every error told to everyone it concerns, once.
 *
 * Committers are threads of the test where one must wait; the flusher is polled by hand, so that
 * what happens in between is up to the test.
 */
#include "rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPIRE (10 * SEC)

/* ---- a hook in the engine's waiting: what somebody does before the woken has the lock ---- */

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

static _Thread_local void (*after_wait)(void *arg);
static _Thread_local void *after_wait_arg;

int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
	int rc = __real_pthread_cond_wait(cond, lock);

	if (after_wait) {
		pthread_mutex_unlock(lock);
		after_wait(after_wait_arg);
		pthread_mutex_lock(lock);
	}
	return rc;
}

/* ---- a committer in a thread ---- */

struct committer {
	struct rig *r;
	struct dc_file *file;
	uint64_t client;
	int res;
	_Atomic bool wrote, done;
	void (*after_wait)(void *arg);
	pthread_t thread;
};

static void *committer_thread(void *arg)
{
	struct committer *c = arg;

	after_wait = c->after_wait;
	after_wait_arg = c;
	c->res = rig_commit(c->r, c->file, c->client);
	atomic_store(&c->done, true);
	return NULL;
}

static void start(struct committer *c, struct rig *r, struct dc_file *file, uint64_t client)
{
	c->r = r;
	c->file = file;
	c->client = client;
	c->done = false;
	assert_int_equal(pthread_create(&c->thread, NULL, committer_thread, c), 0);
}

static bool is_done(void *arg)
{
	return atomic_load(&((struct committer *)arg)->done);
}

static int result(struct committer *c)
{
	rig_await(is_done, c, "a COMMIT");
	pthread_join(c->thread, NULL);
	return c->res;
}

struct waiting {
	struct dc_file *file;
	uint32_t n;
};

static bool are_waiting(void *arg)
{
	struct waiting *w = arg;
	uint32_t n;

	pthread_mutex_lock(&w->file->lock);
	n = w->file->waiters;
	pthread_mutex_unlock(&w->file->lock);
	return n >= w->n;
}

static void await_waiters(struct dc_file *file, uint32_t n)
{
	rig_await(are_waiting, &(struct waiting){ file, n }, "committers to wait");
}

static struct rig *setup(void)
{
	return rig_new(&(struct rig_options){ 0 });
}

/* ---- nothing to do, and sharing ---- */

static void test_covered_is_free(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	int err = 7;

	(void)state;
	rig_write(r, file, 0, 1 * MiB, 1);
	assert_false(dc_commit_is_free(file, DC_CLIENT(1, 0), &err));
	assert_int_equal(err, 7);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 1);
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	assert_int_equal(rig_counter(r, DC_CTR_CLEANED_COMMIT), 1 * MiB);
	for (int i = 0; i < 10; i++)
		assert_int_equal(rig_commit(r, file, 1), 0);
	assert_true(dc_commit_is_free(file, DC_CLIENT(1, 0), &err));
	assert_int_equal(err, 0);
	assert_int_equal(r->fake->syncs, 1);
	assert_int_equal(rig_counter(r, DC_CTR_COMMITS), 12);
	assert_int_equal(rig_counter(r, DC_CTR_COMMITS_FREE), 11);
	rig_check_sum(r, 0);
	dc_file_put(file);
	rig_free(r);
}

/* A file that nobody remembers may have been written by a former life of the server. */
static void test_forgotten_file_syncs(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 1);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 1);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	file = rig_file(r, 1);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 2);
	dc_file_put(file);
	rig_free(r);
}

static void test_sync_is_shared(void **state)
{
	enum { N = 12 };
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c[N] = { 0 };

	(void)state;
	r->fake->block_sync = true;
	rig_write(r, file, 0, PAGE, 100);
	start(&c[0], r, file, 100);
	fake_await_sync(r->fake, 1);
	for (unsigned int i = 1; i < N;
	     i++) { /* each writes, then commits: too late for that one */
		rig_write(r, file, i * PAGE, PAGE, 100 + i);
		start(&c[i], r, file, 100 + i);
	}
	await_waiters(file, N - 1);
	fake_allow_sync(r->fake, 1);
	assert_int_equal(result(&c[0]), 0);
	fake_await_sync(r->fake, 1);
	for (unsigned int i = 1; i < N; i++)
		assert_false(is_done(&c[i]));
	fake_allow_sync(r->fake, 1);
	for (unsigned int i = 1; i < N; i++)
		assert_int_equal(result(&c[i]), 0);
	assert_int_equal(r->fake->syncs, 2);
	assert_int_equal(rig_counter(r, DC_CTR_SYNCS), 2);
	assert_int_equal(rig_counter(r, DC_CTR_COMMITS), N);
	assert_int_equal(rig_counter(r, DC_CTR_COMMITS_SHARED), N - 2);
	r->fake->block_sync = false;
	dc_file_put(file);
	rig_free(r);
}

/* Committers that arrive with nothing new share the one that is running already. */
static void test_running_sync_covers_earlier_writes(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c[3] = { 0 };

	(void)state;
	r->fake->block_sync = true;
	rig_write(r, file, 0, PAGE, 1);
	for (unsigned int i = 0; i < 3; i++)
		start(&c[i], r, file, i);
	fake_await_sync(r->fake, 1);
	await_waiters(file, 2);
	fake_allow_sync(r->fake, 1);
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(result(&c[i]), 0);
	assert_int_equal(r->fake->syncs, 1);
	r->fake->block_sync = false;
	dc_file_put(file);
	rig_free(r);
}

static void test_write_during_sync_is_not_covered(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c = { 0 };

	(void)state;
	r->fake->block_sync = true;
	rig_write(r, file, 0, PAGE, 1);
	start(&c, r, file, 1);
	fake_await_sync(r->fake, 1);
	rig_write(r, file, 0, PAGE, 1); /* the same page */
	fake_allow_sync(r->fake, 1);
	assert_int_equal(result(&c), 0);
	assert_int_equal(rig_stats(r).dirty, PAGE); /* R6: it ends dirty */
	assert_int_equal(rig_stats(r).unsynced_files, 1);
	fake_allow_sync(r->fake, 1);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 2);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	r->fake->block_sync = false;
	dc_file_put(file);
	rig_free(r);
}

/* What the flusher has written is not durable for that. */
static void test_flushed_is_not_synced(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 20 * MiB, 1);
	r->params.dirty_background_bytes = PAGE;
	dc_export_set_params(r->exp, &r->params);
	rig_settle(r);
	assert_true(rig_stats(r).dirty <= PAGE);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 1);
	dc_file_put(file);
	rig_free(r);
}

/* ---- errors ---- */

static void test_error_is_told_to_each_once(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	uint64_t gen = dc_export_error_generation(r->exp);
	unsigned int key = 1;

	(void)state;
	rig_write(r, file, 0, PAGE, 4); /* committed before it */
	assert_int_equal(rig_commit(r, file, 4), 0);
	rig_write(r, file, 0, PAGE, 1);
	rig_write(r, file, PAGE, PAGE, 2);
	r->fake->fail[DC_OP_WRITEBACK] = -EIO;
	r->fake->fail_n[DC_OP_WRITEBACK] = 1;
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 1);
	assert_true(dc_export_error_generation(r->exp) > gen);
	assert_int_equal(r->errors_logged, 1);
	rig_write(r, file, 8 * PAGE, PAGE, 3); /* after it: none of its business */

	/* The handle goes and comes back; the descriptor is closed and opened. */
	dc_file_put(file);
	file = dc_file_get(r->exp, &key, sizeof(key));
	/* Not known any more, so it might be one of them under another address: told, once. */
	assert_int_equal(rig_commit(r, file, 4), -EIO);
	assert_int_equal(rig_commit(r, file, 4), 0);
	assert_int_equal(rig_commit(r, file, 3), 0);
	for (int i = 0; i < 10; i++) {
		rig_pass(r, 6 * SEC);
		rig_settle(r);
	}
	assert_int_equal(file->fd, -1);
	dc_file_put(file);
	file = dc_file_get(r->exp, &key, sizeof(key));
	assert_int_equal(rig_commit(r, file, 1), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 1); /* client 2 has not been told */
	file = dc_file_get(r->exp, &key, sizeof(key));
	assert_int_equal(rig_commit(r, file, 3), 0);
	{
		int err = 0;

		assert_true(dc_commit_is_free(file, DC_CLIENT(2, 0),
					      &err)); /* told even without a descriptor */
		assert_int_equal(err, -EIO);
		assert_true(dc_commit_is_free(file, DC_CLIENT(2, 0), &err));
		assert_int_equal(err, 0);
	}
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

static void test_failed_sync(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	rig_write(r, file, 0, PAGE, 2);
	r->fake->fail_sync = -ENOSPC;
	r->fake->fail_sync_n = 1;
	assert_int_equal(rig_commit(r, file, 1), -ENOSPC);
	assert_int_equal(rig_stats(r).unsynced_files, 1);
	assert_int_equal(rig_commit(r, file, 2), -ENOSPC); /* its sync succeeded; it is told */
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(rig_commit(r, file, 2), 0);
	/* A client that only commits is told of its own sync's failure. */
	rig_write(r, file, 0, PAGE, 1);
	r->fake->fail_sync_n = 1;
	assert_int_equal(rig_commit(r, file, 99), -ENOSPC);
	assert_int_equal(rig_commit(r, file, 99), 0);
	assert_int_equal(rig_commit(r, file, 1), -ENOSPC);
	assert_int_equal(rig_commit(r, file, 1), 0);
	rig_check_sum(r, 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_failure_of_a_shared_sync(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c[3] = { 0 };

	(void)state;
	r->fake->block_sync = true;
	r->fake->fail_sync = -EIO;
	r->fake->fail_sync_n = 1;
	for (unsigned int i = 0; i < 3; i++)
		rig_write(r, file, i * PAGE, PAGE, i);
	for (unsigned int i = 0; i < 3; i++)
		start(&c[i], r, file, i);
	fake_await_sync(r->fake, 1);
	await_waiters(file, 2);
	fake_allow_sync(r->fake, 10);
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(result(&c[i]), -EIO);
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(rig_commit(r, file, i), 0);
	r->fake->block_sync = false;
	dc_file_put(file);
	rig_free(r);
}

static void test_error_of_others(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	dc_file_error(file, -EDQUOT);
	assert_int_equal(rig_commit(r, file, 1), -EDQUOT);
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_error(file, -EIO); /* nobody has anything uncommitted */
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	rig_free(r);
}

/* The trap: a turn's wait has eaten the error, and fdatasync on the same descriptor "succeeds". The
 * COMMIT must not answer before that turn is reaped, and then with the error. */
static void test_error_eaten_by_a_turn(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c = { 0 };

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_write(r, file, 0, 1 * MiB, 1);
	rig_pass(r, EXPIRE + SEC);
	assert_int_equal(r->fake->nr_held, 1);
	start(&c, r, file, 1);
	await_waiters(file, 1); /* its sync is over */
	assert_int_equal(r->fake->syncs, 1);
	assert_false(is_done(&c));
	fake_release(r->fake, 1, -EIO);
	rig_poll(r, 1);
	assert_int_equal(result(&c), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	r->fake->hold = 0;
	dc_file_put(file);
	rig_free(r);
}

/* The same with the flusher's own fdatasync of a quiet file: it has eaten the error and is not
 * reaped yet when a COMMIT's fdatasync "succeeds". */
static void test_error_eaten_by_a_quiet_sync(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c = { 0 };

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	rig_pass(r, EXPIRE + SEC);
	assert_int_equal(r->fake->nr_held, 1);
	start(&c, r, file, 1);
	await_waiters(file, 1);
	fake_release(r->fake, 1, -EIO);
	rig_poll(r, 1);
	assert_int_equal(result(&c), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	rig_free(r);
}

/* The other way round: a COMMIT's fdatasync fails, and the flusher's, which ran beside it, has
 * succeeded. All who wrote must be told, not only the one that committed. */
static void test_error_beside_a_quiet_sync(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	struct committer c = { 0 };

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	rig_write(r, file, PAGE, PAGE, 2);
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	rig_pass(r, EXPIRE + SEC);
	assert_int_equal(r->fake->nr_held, 1);
	r->fake->block_sync = true;
	r->fake->fail_sync = -EIO;
	r->fake->fail_sync_n = 1;
	start(&c, r, file, 1);
	fake_await_sync(r->fake, 1);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 1);
	fake_allow_sync(r->fake, 1);
	assert_int_equal(result(&c), -EIO);
	r->fake->block_sync = false;
	assert_int_equal(rig_commit(r, file, 2), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(rig_commit(r, file, 2), 0);
	dc_file_put(file);
	rig_free(r);
}

/* ---- the flusher's part ---- */

static void test_quiet_file_is_synced_beforehand(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 1 * MiB, 1);
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	assert_int_equal(rig_stats(r).unsynced_files, 1);
	rig_pass(r, EXPIRE / 2);
	rig_settle(r);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 0);
	rig_pass(r, EXPIRE / 2 + SEC);
	rig_settle(r);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 1);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 0); /* free */
	assert_int_equal(rig_counter(r, DC_CTR_COMMITS_FREE), 1);
	dc_file_put(file);
	rig_free(r);
}

static void test_write_during_quiet_sync(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	rig_pass(r, EXPIRE + SEC);
	assert_int_equal(r->fake->nr_held, 1);
	rig_write(r, file, 0, PAGE, 1);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 1);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 1);
	dc_file_put(file);
	rig_free(r);
}

static void test_failed_and_refused_quiet_sync(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	r->fake->fail[DC_OP_SYNC] = -ENOSYS;
	r->fake->fail_n[DC_OP_SYNC] = 1;
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 1);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 0);
	assert_int_equal(rig_stats(r).unsynced_files, 1);
	r->fake->fail[DC_OP_SYNC] = -EIO;
	r->fake->fail_n[DC_OP_SYNC] = 1;
	rig_pass(r, EXPIRE + SEC);
	rig_settle(r);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 1);
	rig_pass(r, EXPIRE + SEC); /* once more, and it goes well; the error stays owed */
	rig_settle(r);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	assert_int_equal(rig_commit(r, file, 1), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(r->fake->syncs, 0);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* With much dirty the flusher writes it, in turns that let others in. */
static void test_large_commit_goes_through_the_flusher(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.threads = true, .limit = 256 * MiB, .background = 200 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_watchdog(60, "test_large_commit_goes_through_the_flusher");
	rig_write(r, file, 0, 100 * MiB, 1);
	assert_int_equal(rig_commit(r, file, 1), 0);
	pthread_mutex_lock(&r->fake->lock);
	assert_true(r->fake->submitted[DC_OP_WRITEBACK] > 3);
	assert_int_equal(r->fake->syncs, 1);
	pthread_mutex_unlock(&r->fake->lock);
	assert_int_equal(rig_counter(r, DC_CTR_CLEANED_COMMIT), 100 * MiB);
	dc_file_put(file);
	rig_free(r);
	alarm(0);
}

static bool one_is_held(void *arg)
{
	struct fake *f = arg;
	bool yes;

	pthread_mutex_lock(&f->lock);
	yes = f->nr_held > 0;
	pthread_mutex_unlock(&f->lock);
	return yes;
}

struct pair {
	struct rig *r;
	struct committer *a, *b;
};

static bool both_done(void *arg)
{
	struct pair *p = arg;

	fake_release(p->r->fake, UINT32_MAX, 0);
	if (p->b->wrote)
		fake_allow_sync(p->r->fake, 10);
	return is_done(p->a) && is_done(p->b);
}

static bool nothing_in_flight(void *arg)
{
	struct rig *r = arg;

	fake_release(r->fake, UINT32_MAX, 0);
	return atomic_load(&r->exp->writeback) == 0;
}

static void write_when_clean(void *arg)
{
	struct committer *c = arg;

	bool clean;

	pthread_mutex_lock(&c->file->lock);
	clean = c->file->map.nr_pages == 0;
	pthread_mutex_unlock(&c->file->lock);
	if (clean && !c->wrote) {
		fake_await_sync(c->r->fake, 1); /* the first COMMIT's: too early for this */
		rig_write(c->r, c->file, 0, PAGE, 3);
		c->wrote = true;
	}
}

/* Two large COMMITs of one file; when it has become clean, a writer gets the lock before the second
 * one does. That one must not wait for what came later, which nothing hurries. */
static void test_second_large_commit_is_not_left_behind(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.threads = true, .limit = 256 * MiB, .background = 200 * MiB });
	struct dc_file *file = rig_file(r, 1);
	struct committer a = { 0 }, b = { .after_wait = write_when_clean };

	(void)state;
	rig_watchdog(60, "test_second_large_commit_is_not_left_behind");
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	r->fake->block_sync = true;
	rig_write(r, file, 0, 100 * MiB, 1);
	start(&a, r, file, 1);
	rig_await(one_is_held, r->fake, "the flusher");
	await_waiters(file, 1);
	start(&b, r, file, 2);
	await_waiters(file, 2);
	rig_await(both_done, &(struct pair){ r, &a, &b }, "both COMMITs");
	assert_int_equal(result(&a), 0);
	assert_int_equal(result(&b), 0);
	r->fake->block_sync = false;
	dc_file_put(file);
	rig_free(r);
	alarm(0);
}

/* A large COMMIT of a file that is truncated meanwhile has nothing to wait for. */
static void test_large_commit_and_truncate(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.threads = true, .limit = 256 * MiB, .background = 200 * MiB });
	struct dc_file *file = rig_file(r, 1);
	struct committer a = { 0 };

	(void)state;
	rig_watchdog(60, "test_large_commit_and_truncate");
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_write(r, file, 0, 100 * MiB, 1);
	start(&a, r, file, 1);
	rig_await(one_is_held, r->fake, "the flusher");
	await_waiters(file, 1);
	dc_file_truncated(file, 0, dc_file_seq(file));
	rig_await(nothing_in_flight, r, "the flusher");
	assert_int_equal(result(&a), 0);
	dc_file_put(file);
	rig_free(r);
	alarm(0);
}

/* ---- who has written ---- */

static void test_writers_are_recycled(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	for (unsigned int i = 0; i < 1000; i++) {
		rig_write(r, file, i % 10 * PAGE, PAGE, i);
		assert_int_equal(rig_commit(r, file, i), 0);
	}
	assert_int_equal(file->nr_writers, 1);
	for (unsigned int i = 0; i < 100; i++)
		rig_write(r, file, 0, PAGE, i);
	assert_int_equal(file->nr_writers, 100);
	r->fake->fail_sync = -EIO;
	r->fake->fail_sync_n = 1;
	assert_int_equal(rig_commit(r, file, 50), -EIO);
	assert_int_equal(rig_commit(r, file, 1000), -EIO); /* unknown: told, once */
	assert_int_equal(rig_commit(r, file, 1000), 0);
	/* Who is owed an error keeps its place, however many come after. */
	for (unsigned int i = 1000; i < 2000; i++) {
		rig_write(r, file, 0, PAGE, i);
		assert_int_equal(rig_commit(r, file, i), 0);
	}
	for (unsigned int i = 0; i < 100; i++)
		assert_int_equal(rig_commit(r, file, i), i == 50 ? 0 : -EIO);
	for (unsigned int i = 0; i < 100; i++)
		assert_int_equal(rig_commit(r, file, i), 0);
	assert_true(file->nr_writers <= 256 + 1);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* A deleted file: nothing to make durable, but an error is still told. */
static void test_commit_of_a_deleted_file(void **state)
{
	struct rig *r = setup();
	struct dc_file *file = rig_file(r, 1);
	int fd = dup(file->fd);

	(void)state;
	rig_write(r, file, 0, PAGE, 1);
	dc_file_error(file, -EIO);
	rig_unlink(r, 1);
	dc_file_check_links(file);
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_false(dc_write_begin(file));
	dc_file_set_fd(file, fd);
	assert_int_equal(rig_commit(r, file, 1), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_covered_is_free),
		cmocka_unit_test(test_forgotten_file_syncs),
		cmocka_unit_test(test_sync_is_shared),
		cmocka_unit_test(test_running_sync_covers_earlier_writes),
		cmocka_unit_test(test_write_during_sync_is_not_covered),
		cmocka_unit_test(test_flushed_is_not_synced),
		cmocka_unit_test(test_error_is_told_to_each_once),
		cmocka_unit_test(test_failed_sync),
		cmocka_unit_test(test_failure_of_a_shared_sync),
		cmocka_unit_test(test_error_of_others),
		cmocka_unit_test(test_error_eaten_by_a_turn),
		cmocka_unit_test(test_error_eaten_by_a_quiet_sync),
		cmocka_unit_test(test_error_beside_a_quiet_sync),
		cmocka_unit_test(test_quiet_file_is_synced_beforehand),
		cmocka_unit_test(test_write_during_quiet_sync),
		cmocka_unit_test(test_failed_and_refused_quiet_sync),
		cmocka_unit_test(test_large_commit_goes_through_the_flusher),
		cmocka_unit_test(test_second_large_commit_is_not_left_behind),
		cmocka_unit_test(test_large_commit_and_truncate),
		cmocka_unit_test(test_writers_are_recycled),
		cmocka_unit_test(test_commit_of_a_deleted_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
