/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Stable writes and COMMITs of a range: the range that was asked for and no more, shared where that costs
 * nothing, and never "durable" for what an error took, whoever was told of the error first.
 */
#include "rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define A 1
#define B 2

/* ---- a stable write of the test ---- */

struct swrite {
	struct dc_stable s;
	bool done;
	int res;
};

static void answered(struct dc_stable *s, int res)
{
	struct swrite *w = container_of_dc(s, struct swrite, s);

	assert_false(w->done);
	w->done = true;
	w->res = res;
}

static void stable(struct rig *r, struct dc_file *file, struct swrite *w, uint64_t offset,
		   uint64_t len, unsigned int client)
{
	uint64_t pages = dc_write_pages(offset, len);

	memset(w, 0, sizeof(*w));
	assert_true(dc_admit(r->exp, pages));
	rig_begin(r, file);
	w->s.begun = dc_stable_begin(file);
	w->s.errors = dc_file_errors(file);
	w->s.offset = offset;
	w->s.len = len;
	w->s.client = DC_CLIENT(client, 0);
	w->s.done = answered;
	dc_write_done(file, offset, len, pages, w->s.client, w->s.errors, true);
	dc_stable_sync(file, &w->s);
}

static const struct fake_call *last_sync(struct rig *r)
{
	for (unsigned int i = r->fake->nr_calls; i-- > 0;)
		if (r->fake->call[i].kind == DC_OP_SYNC)
			return &r->fake->call[i];
	return NULL;
}

static void test_its_own_range(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	rig_write(r, file, 0, 4 * MiB, A);
	stable(r, file, &w, 10 * MiB + 5, 4096, B);
	assert_false(w.done);
	rig_settle(r);
	assert_true(w.done);
	assert_int_equal(w.res, 0);
	assert_int_equal(last_sync(r)->offset, 10 * MiB + 5);
	assert_int_equal(last_sync(r)->len, 4096);
	assert_int_not_equal(last_sync(r)->fd, file->fd);
	assert_int_equal(rig_stats(r).dirty, 4 * MiB); /* A's stays as it was */
	assert_int_equal(rig_stats(r).writeback, 0);
	rig_check_sum(r, 0);
	assert_int_equal(rig_commit(r, file, A), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A file with nothing but stable writes owes no COMMIT, and is not kept. */
static void test_owes_no_commit(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;
	int err;

	(void)state;
	rig_write(r, file, 0, MiB, A);
	assert_int_equal(rig_commit(r, file, A), 0);
	stable(r, file, &w, 0, MiB, A);
	rig_settle(r);
	assert_true(dc_commit_is_free(file, DC_CLIENT(A, 0), &err));
	assert_int_equal(err, 0);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

static void test_shared(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w[4];

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	for (unsigned int i = 0; i < 4; i++)
		stable(r, file, &w[i], i * 3 * PAGE, PAGE, A + i);
	rig_poll(r, 2);
	assert_int_equal(r->fake->nr_held, 1);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 2);
	assert_true(w[0].done);
	assert_false(w[1].done || w[2].done || w[3].done);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 2);
	assert_int_equal(last_sync(r)->offset, 3 * PAGE);
	assert_int_equal(last_sync(r)->len, 7 * PAGE);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 2);
	for (unsigned int i = 0; i < 4; i++)
		assert_true(w[i].done && w[i].res == 0);
	rig_check_sum(r, 0);
	dc_file_put(file);
	rig_free(r);
}

/* Not through another client's stream. */
static void test_not_shared_across_a_stream(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w[3];

	(void)state;
	rig_write(r, file, MiB, 4 * MiB, A);
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	stable(r, file, &w[0], 0, PAGE, B);
	stable(r, file, &w[1], PAGE, PAGE, B);
	stable(r, file, &w[2], 8 * MiB, PAGE, B);
	rig_poll(r, 1);
	for (unsigned int i = 0; i < 3; i++) {
		assert_int_equal(fake_release(r->fake, 1, 0), 1);
		rig_poll(r, 2);
		assert_true(w[i].done);
		assert_int_equal(last_sync(r)->len, PAGE);
	}
	assert_int_equal(rig_stats(r).dirty, 4 * MiB);
	r->fake->hold = 0;
	dc_file_put(file);
	rig_free(r);
}

static void test_error_fails_all_that_share(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w[3];

	(void)state;
	rig_write(r, file, 20 * MiB, PAGE, A);
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	for (unsigned int i = 0; i < 3; i++)
		stable(r, file, &w[i], i * PAGE, PAGE, B);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 2);
	fake_release(r->fake, 1, -ENOSPC);
	rig_poll(r, 2);
	assert_int_equal(w[0].res, 0);
	assert_int_equal(w[1].res, -ENOSPC);
	assert_int_equal(w[2].res, -ENOSPC);
	r->fake->hold = 0;
	/* A has uncommitted writes and is told, once; B was told in its answers. */
	assert_int_equal(rig_commit(r, file, A), -ENOSPC);
	assert_int_equal(rig_commit(r, file, A), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A turn took the error of the very page that a stable write is syncing. */
static void test_error_recorded_meanwhile(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 4 * MiB });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	r->fake->fail[DC_OP_WRITEBACK] = -EIO;
	r->fake->fail_n[DC_OP_WRITEBACK] = 1;
	stable(r, file, &w, 0, PAGE, B);
	rig_write(r, file, MiB, 8 * MiB, A);
	rig_poll(r, 4);
	assert_false(w.done);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 2);
	assert_true(w.done);
	assert_int_equal(w.res, -EIO);
	r->fake->hold = 0;
	assert_int_equal(rig_commit(r, file, A), -EIO);
	/* A later one is nobody's business. */
	stable(r, file, &w, 0, PAGE, B);
	rig_settle(r);
	assert_int_equal(w.res, 0);
	dc_file_put(file);
	rig_free(r);
}

/* An error that is owed is told by a stable write as well, even by one that succeeds; but its reader need
 * not be who lost the data, so the COMMIT tells it again. */
static void test_tells_what_is_owed(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	rig_write(r, file, 0, MiB, A);
	dc_file_error(file, -EIO);
	stable(r, file, &w, 4 * MiB, PAGE, A);
	rig_settle(r);
	assert_int_equal(w.res, -EIO);
	stable(r, file, &w, 4 * MiB, PAGE, A);
	rig_settle(r);
	assert_int_equal(w.res, 0);
	assert_int_equal(rig_commit(r, file, A), -EIO);
	assert_int_equal(rig_commit(r, file, A), 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_refused_is_done_plainly(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	r->fake->fail[DC_OP_SYNC] = -ECANCELED;
	r->fake->fail_n[DC_OP_SYNC] = 1;
	stable(r, file, &w, 0, PAGE, A);
	rig_settle(r);
	assert_int_equal(w.res, 0);
	assert_int_equal(r->fake->syncs, 1);
	r->fake->fail[DC_OP_SYNC] = -ECANCELED;
	r->fake->fail_n[DC_OP_SYNC] = 1;
	r->fake->fail_sync = -EIO;
	r->fake->fail_sync_n = 1;
	stable(r, file, &w, 0, PAGE, A);
	rig_settle(r);
	assert_int_equal(w.res, -EIO);
	dc_file_put(file);
	rig_free(r);
}

static void test_without_a_descriptor(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .max_open_files = 1 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	stable(r, file, &w, 0, PAGE, A);
	assert_true(w.done); /* at once, and of the whole file */
	assert_int_equal(w.res, 0);
	assert_int_equal(r->fake->syncs, 1);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 0);
	r->fake->fail_sync = -EDQUOT;
	r->fake->fail_sync_n = 1;
	stable(r, file, &w, 0, PAGE, A);
	assert_int_equal(w.res, -EDQUOT);
	dc_file_put(file);
	rig_free(r);
}

static void test_unlinked_meanwhile(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_SYNC);
	stable(r, file, &w, 0, PAGE, A);
	rig_unlink(r, 1);
	dc_file_check_links(file);
	dc_file_put(file);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 2);
	assert_true(w.done && w.res == 0);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* Written while it has no name any more, then cut to nothing: nobody will ever ask for it again. */
static void test_unlinked_leaves_nothing(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, MiB, A);
	rig_begin(r, file); /* an open keeps it */
	rig_unlink(r, 1);
	dc_file_check_links(file);
	rig_write(r, file, 0, MiB, A);
	dc_file_truncated(file, 0, dc_file_seq(file));
	dc_write_unpin(file);
	dc_file_put(file);
	rig_settle(r);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* ---- COMMIT of a range ---- */

struct ranged {
	struct rig *r;
	struct dc_file *file;
	uint64_t client, offset, len;
	int res;
	_Atomic bool done;
	pthread_t thread;
};

static void *ranged_thread(void *arg)
{
	struct ranged *c = arg;

	rig_begin(c->r, c->file);
	c->res = dc_commit(c->file, DC_CLIENT(c->client, 0), c->offset, c->len);
	dc_write_unpin(c->file);
	atomic_store(&c->done, true);
	return NULL;
}

static int commit_range(struct rig *r, struct dc_file *file, unsigned int client, uint64_t offset,
			uint64_t len)
{
	struct ranged c = { .r = r, .file = file, .client = client, .offset = offset, .len = len };

	assert_int_equal(pthread_create(&c.thread, NULL, ranged_thread, &c), 0);
	while (!atomic_load(&c.done)) {
		rig_poll(r, 1);
		usleep(100);
	}
	pthread_join(c.thread, NULL);
	return c.res;
}

static void test_commit_of_a_range(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 60 * MiB });
	struct dc_file *file = rig_file(r, 1);
	int err;

	(void)state;
	rig_write(r, file, 0, 4 * MiB, A);
	rig_write(r, file, 100 * MiB, 12 * MiB, B);
	assert_int_equal(commit_range(r, file, B, 100 * MiB, 12 * MiB), 0);
	assert_int_equal(rig_stats(r).dirty, 4 * MiB);
	assert_int_equal(r->fake->syncs, 0);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 2); /* in pieces of 8 MiB */
	assert_int_equal(last_sync(r)->offset, 108 * MiB);
	assert_int_equal(last_sync(r)->len, 4 * MiB);
	/* It promised nothing of the rest. */
	assert_false(dc_commit_is_free(file, DC_CLIENT(A, 0), &err));
	/* With little outside the range the whole file is synced: the next COMMIT is free. */
	assert_int_equal(commit_range(r, file, A, 0, 3 * MiB), 0);
	assert_int_equal(r->fake->syncs, 1);
	assert_true(dc_commit_is_free(file, DC_CLIENT(B, 0), &err));
	dc_file_put(file);
	rig_free(r);
}

static void test_commit_of_a_range_fails(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 60 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 4 * MiB, A);
	rig_write(r, file, 100 * MiB, PAGE, B);
	r->fake->fail[DC_OP_SYNC] = -EIO;
	r->fake->fail_n[DC_OP_SYNC] = 1;
	assert_int_equal(commit_range(r, file, B, 100 * MiB, PAGE), -EIO);
	assert_int_equal(rig_commit(r, file, B), 0); /* was told */
	assert_int_equal(rig_commit(r, file, A), -EIO);
	assert_int_equal(rig_commit(r, file, A), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A local process's fsync was told of the error before the range's descriptor was opened; only the older
 * descriptor has it still. */
static void test_commit_of_a_range_asks_both(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 60 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 4 * MiB, A);
	rig_write(r, file, 100 * MiB, PAGE, B);
	r->fake->pending = -EIO;
	r->fake->pending_fd = file->fd;
	assert_int_equal(commit_range(r, file, B, 100 * MiB, PAGE), -EIO);
	assert_int_equal(rig_commit(r, file, A), -EIO);
	dc_file_put(file);
	rig_free(r);
}

/* ---- who is told ---- */

static int commit_as(struct rig *r, struct dc_file *file, uint64_t client)
{
	int res;

	rig_begin(r, file);
	res = dc_commit(file, client, 0, 0);
	dc_write_unpin(file);
	return res;
}

static void write_as(struct rig *r, struct dc_file *file, uint64_t offset, uint64_t client)
{
	assert_true(dc_admit(r->exp, 1));
	rig_begin(r, file);
	dc_write_done(file, offset, PAGE, 1, client, dc_file_errors(file), false);
}

static void test_clients_of_one_address(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	/* Two behind one address, each with its connection: both are told. */
	write_as(r, file, 0, DC_CLIENT(7, 1));
	write_as(r, file, PAGE, DC_CLIENT(7, 2));
	dc_file_error(file, -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 1)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 1)), 0);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), 0);
	/* One client that writes through one connection and commits through another, which it wrote
	 * through before. */
	write_as(r, file, 0, DC_CLIENT(7, 1));
	dc_file_error(file, -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), 0);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 1)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 1)), 0);
	/* One that connected anew. What is owed to its former connection does not stay for good. */
	write_as(r, file, 0, DC_CLIENT(7, 3));
	dc_file_error(file, -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 4)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 4)), 0);
	assert_int_equal(commit_as(r, file, DC_CLIENT(9, 1)), -EIO); /* a stranger, once */
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 1);
	for (int i = 0; i < 12; i++)
		rig_pass(r, 60 * SEC);
	assert_int_equal(rig_stats(r).files, 0);
	file = rig_file(r, 1);
	assert_int_equal(commit_as(r, file, DC_CLIENT(10, 1)), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A COMMIT that began before another one was told of the error. */
static void test_two_commits_of_one_client(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 60 * MiB });
	struct dc_file *file = rig_file(r, 1);
	struct ranged c = { .r = r, .file = file, .client = A };

	(void)state;
	rig_write(r, file, 0, PAGE, A);
	r->fake->block_sync = true;
	assert_int_equal(pthread_create(&c.thread, NULL, ranged_thread, &c), 0);
	fake_await_sync(r->fake, 1);
	dc_file_error(file, -EIO);
	/* Another COMMIT is told in the meantime ... */
	{
		int err = 0;

		pthread_mutex_lock(&file->lock);
		err = dc_told_locked(file, DC_CLIENT(A, 0), true);
		pthread_mutex_unlock(&file->lock);
		assert_int_equal(err, -EIO);
	}
	/* ... and this one must not say yes to what is lost. */
	fake_allow_sync(r->fake, 1);
	pthread_join(c.thread, NULL);
	assert_int_equal(c.res, -EIO);
	r->fake->block_sync = false;
	assert_int_equal(rig_commit(r, file, A), 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_error_outlives_its_export(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, PAGE, A);
	rig_write(r, file, PAGE, PAGE, B);
	dc_file_error(file, -ENOSPC);
	assert_int_equal(rig_commit(r, file, A), -ENOSPC);
	dc_file_put(file);
	assert_int_equal(dc_export_drain(r->exp, SEC), 0);
	assert_true(dc_export_free(r->exp, SEC));
	r->exp = dc_export_new(r->dev, 7, "/again", &r->params);
	file = rig_file(r, 1);
	assert_int_equal(rig_commit(r, file, A), 0);
	assert_int_equal(rig_commit(r, file, B), -ENOSPC);
	assert_int_equal(rig_commit(r, file, B), 0);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* What was told in a lesser way long ago does not take a newer error with it. */
static void test_newer_error_is_not_forgotten(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	rig_write(r, file, 0, PAGE, A);
	dc_file_error(file, -EIO);
	stable(r, file, &w, MiB, PAGE, A); /* tells, and settles nothing */
	rig_settle(r);
	assert_int_equal(w.res, -EIO);
	for (int i = 0; i < 9; i++)
		rig_pass(r, 60 * SEC);
	rig_write(r, file, 0, PAGE, A);
	dc_file_error(file, -ENOSPC);
	for (int i = 0; i < 5; i++)
		rig_pass(r, 60 * SEC);
	assert_true(rig_commit(r, file, A) < 0);
	dc_file_put(file);
	rig_free(r);
}

/* An adopted error is told through each connection of its host, as before. */
static void test_orphan_and_two_connections(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	write_as(r, file, PAGE, DC_CLIENT(7, 2));
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), 0);
	write_as(r, file, 0, DC_CLIENT(7, 1));
	dc_file_error(file, -EIO);
	dc_file_put(file);
	assert_int_equal(dc_export_drain(r->exp, SEC), 0);
	assert_true(dc_export_free(r->exp, SEC));
	r->exp = dc_export_new(r->dev, 7, "/again", &r->params);
	file = rig_file(r, 1);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 2)), 0);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 1)), -EIO);
	assert_int_equal(commit_as(r, file, DC_CLIENT(7, 1)), 0);
	dc_file_put(file);
	rig_free(r);
}

/* The export ends while a turn is in flight, and then the turn fails. */
static void test_error_after_its_export(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 4 * MiB });
	struct dc_file *file = rig_file(r, 1);
	struct dc_export *old = r->exp;

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_write(r, file, 0, 8 * MiB, A);
	rig_poll(r, 2);
	dc_file_put(file);
	assert_true(dc_export_drain(r->exp, MSEC) > 0);
	assert_false(dc_export_free(old, MSEC)); /* "leaked rather than waited for" */
	r->fake->hold = 0;
	fake_release(r->fake, 10, -EIO);
	rig_poll(r, 4);
	assert_true(old->detached);
	dc_export_put(old);
	r->exp = dc_export_new(r->dev, 7, "/again", &r->params);
	file = rig_file(r, 1);
	assert_int_equal(rig_commit(r, file, A), -EIO);
	assert_int_equal(rig_commit(r, file, A), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A file that came to rest is in use again while its drop lingers. */
static void test_rest_and_drop(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct swrite w;

	(void)state;
	r->dev->threaded = true; /* as if: the drop is left to the flusher */
	stable(r, file, &w, MiB, MiB, A);
	rig_settle(r);
	assert_int_equal(w.res, 0);
	dc_fd_shed(r->eng);
	r->dev->threaded = false;
	rig_unlink(r, 1);
	dc_file_check_links(file);
	for (int i = 0; i < 10; i++)
		rig_pass(r, SEC);
	dc_file_put(file);
	rig_free(r);
}

/* ---- claims that only the kernel knows of ---- */

static struct dc_cachestat kernel;

static int says(void *arg, int fd, uint64_t offset, uint64_t len, struct dc_cachestat *st)
{
	(void)arg;
	(void)fd;
	(void)len;
	*st = offset < 2 * MiB ? kernel : (struct dc_cachestat){ 0 };
	return 0;
}

static void test_edge_is_claimed(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .limit = 4 * MiB, .background = 3 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	r->fake->cachestat = says;
	kernel = (struct dc_cachestat){ .cached = 4, .dirty = 4 };
	rig_begin(r, file);
	dc_file_edge(file, 5000);
	assert_int_equal(rig_stats(r).dirty, 4 * PAGE);
	dc_file_edge(file, 2 * PAGE); /* no page is cut there */
	assert_int_equal(rig_stats(r).dirty, 4 * PAGE);
	/* A write beyond an end inside a page dirties that page too. */
	kernel = (struct dc_cachestat){ 0 };
	rig_write(r, file, 0, PAGE + 100, A);
	assert_int_equal(rig_commit(r, file, A), 0);
	kernel = (struct dc_cachestat){ .cached = 1, .dirty = 1 };
	rig_write(r, file, 4 * MiB, PAGE, A);
	assert_int_equal(rig_stats(r).dirty, 2 * PAGE);
	kernel = (struct dc_cachestat){ 0 };
	assert_int_equal(rig_commit(r, file, A), 0);
	kernel = (struct dc_cachestat){ .cached = 4, .dirty = 4 };
	dc_file_edge(file, 5000);
	/* No room: written back at once, and nothing is claimed. */
	rig_write(r, file, 8 * MiB, MiB, A);
	rig_write(r, file, 16 * MiB, MiB, A);
	rig_write(r, file, 24 * MiB, MiB, A);
	kernel.dirty = 7;
	dc_file_edge(file, 5000); /* claimed already */
	assert_int_equal(r->fake->directs, 0);
	dc_file_edge(file, 9 * PAGE + 5);
	assert_int_equal(r->fake->directs, 1);
	assert_int_equal(rig_stats(r).dirty, 3 * MiB + 4 * PAGE);
	rig_check_sum(r, 0);
	dc_write_unpin(file);
	dc_file_put(file);
	rig_free(r);
}

static void test_audit(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	assert_int_equal(ftruncate(file->fd, MiB), 0);
	r->fake->cachestat = says;
	r->params.audit = 1;
	dc_export_set_params(r->exp, &r->params);
	kernel = (struct dc_cachestat){ .cached = 9, .dirty = 2 };
	rig_write(r, file, 0, 2 * PAGE, A);
	rig_pass(r, SEC);
	assert_true(rig_counter(r, DC_CTR_AUDITS) > 0);
	assert_int_equal(rig_counter(r, DC_CTR_UNCLAIMED), 0);
	kernel.dirty = 5;
	rig_pass(r, SEC);
	assert_int_equal(rig_counter(r, DC_CTR_UNCLAIMED), 3 * PAGE);
	assert_non_null(strstr(r->last_log, "12 KiB dirty that nobody counts"));
	/* While a write is under way nobody can tell. */
	rig_begin(r, file);
	rig_pass(r, SEC);
	assert_int_equal(rig_counter(r, DC_CTR_UNCLAIMED), 3 * PAGE);
	dc_write_unpin(file);
	kernel.dirty = 0;
	dc_file_put(file);
	rig_free(r);
}

/* The kernel had no memory and keeps the pages dirty: so are they here. */
static void test_failed_for_want_of_memory(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 4 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 5 * MiB, A);
	r->fake->cachestat = says;
	kernel = (struct dc_cachestat){ .cached = 500, .dirty = 300 };
	r->fake->fail[DC_OP_WRITEBACK] = r->fake->fail_direct = r->fake->fail_sync = -ENOMEM;
	r->fake->fail_n[DC_OP_WRITEBACK] = r->fake->fail_direct_n = r->fake->fail_sync_n = 1;
	rig_poll(r, 2);
	assert_int_equal(rig_stats(r).writeback, 0);
	assert_true(rig_stats(r).dirty >= 300 * PAGE);
	rig_check_sum(r, 0);
	kernel.dirty = 0;
	assert_int_equal(rig_commit(r, file, A), -ENOMEM);
	dc_file_put(file);
	rig_free(r);
}

/* ---- the watchdog ---- */

static void test_watchdog(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 4 * MiB });
	struct dc_file *file = rig_file(r, 1);
	unsigned int errors;

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_write(r, file, 0, 8 * MiB, A);
	rig_poll(r, 2);
	rig_pass(r, 9 * SEC);
	errors = r->errors_logged;
	rig_pass(r, 3 * SEC);
	assert_int_equal(r->errors_logged, errors + 1);
	assert_non_null(strstr(r->last_log, "has been under way for 12 s"));
	rig_pass(r, 20 * SEC); /* not again so soon */
	assert_int_equal(r->errors_logged, errors + 1);
	rig_pass(r, 50 * SEC);
	assert_int_equal(r->errors_logged, errors + 2);
	r->fake->hold = 0;
	fake_release(r->fake, 10, 0);
	rig_settle(r);
	rig_pass(r, SEC);
	assert_non_null(strstr(r->last_log, "answers again"));
	dc_file_put(file);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_its_own_range),
		cmocka_unit_test(test_owes_no_commit),
		cmocka_unit_test(test_shared),
		cmocka_unit_test(test_not_shared_across_a_stream),
		cmocka_unit_test(test_error_fails_all_that_share),
		cmocka_unit_test(test_error_recorded_meanwhile),
		cmocka_unit_test(test_tells_what_is_owed),
		cmocka_unit_test(test_refused_is_done_plainly),
		cmocka_unit_test(test_without_a_descriptor),
		cmocka_unit_test(test_unlinked_meanwhile),
		cmocka_unit_test(test_unlinked_leaves_nothing),
		cmocka_unit_test(test_commit_of_a_range),
		cmocka_unit_test(test_commit_of_a_range_fails),
		cmocka_unit_test(test_commit_of_a_range_asks_both),
		cmocka_unit_test(test_clients_of_one_address),
		cmocka_unit_test(test_two_commits_of_one_client),
		cmocka_unit_test(test_error_outlives_its_export),
		cmocka_unit_test(test_newer_error_is_not_forgotten),
		cmocka_unit_test(test_orphan_and_two_connections),
		cmocka_unit_test(test_error_after_its_export),
		cmocka_unit_test(test_rest_and_drop),
		cmocka_unit_test(test_edge_is_claimed),
		cmocka_unit_test(test_audit),
		cmocka_unit_test(test_failed_for_want_of_memory),
		cmocka_unit_test(test_watchdog),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
