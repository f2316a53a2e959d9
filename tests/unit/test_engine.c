/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The flusher, without threads and with a scripted device: what it writes back and when, in which
 * order, what it drops, how claims end without I/O, and how files and exports end.
 */
#include "rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPIRE (10 * SEC) /* the default */
#define TICK (250 * MSEC)

static bool fd_is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static uint64_t written(struct rig *r)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < r->fake->nr_calls; i++)
		if (!r->fake->call[i].direct && r->fake->call[i].kind == DC_OP_WRITEBACK)
			n += r->fake->call[i].len;
	return n;
}

/* ---- when ---- */

static void test_nothing_below_background(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 16 * MiB, 1); /* the level exactly */
	rig_settle(r);
	rig_pass(r, EXPIRE / 2);
	rig_settle(r);
	assert_int_equal(r->fake->submitted[DC_OP_WRITEBACK], 0);
	assert_int_equal(rig_stats(r).dirty, 16 * MiB);
	dc_file_put(file);
	rig_free(r);
}

static void test_down_to_background(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 40 * MiB, 1);
	rig_settle(r);
	assert_true(rig_stats(r).dirty <= 16 * MiB);
	assert_true(rig_stats(r).dirty > 16 * MiB - 4 * MiB); /* one turn */
	assert_int_equal(written(r), 40 * MiB - rig_stats(r).dirty);
	assert_int_equal(rig_counter(r, DC_CTR_CLEANED_BACKGROUND), written(r));
	assert_int_equal(rig_stats(r).writeback, 0);
	rig_check_sum(r, 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_expire(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *a = rig_file(r, 1), *b = rig_file(r, 2);

	(void)state;
	rig_poll(r, 1);
	rig_write(r, a, 0, 1 * MiB, 1);
	rig_pass(r, EXPIRE / 2);
	rig_write(r, b, 0, 1 * MiB, 1);
	rig_pass(r, EXPIRE / 2 - TICK);
	rig_settle(r);
	assert_int_equal(written(r), 0);
	rig_pass(r, 2 * TICK);
	rig_settle(r);
	assert_int_equal(written(r), 1 * MiB); /* a alone */
	assert_int_equal(r->fake->call[0].fd, a->fd);
	rig_pass(r, EXPIRE / 2 + TICK);
	rig_settle(r);
	assert_int_equal(written(r), 2 * MiB);
	assert_int_equal(rig_counter(r, DC_CTR_CLEANED_EXPIRE), 2 * MiB);
	dc_file_put(a);
	dc_file_put(b);
	rig_free(r);
}

/* Written all the time, and yet no page stays dirty for longer than twice the expiry time. */
static void test_expire_of_a_busy_file(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	uint64_t before;

	(void)state;
	rig_write(r, file, 0, 4 * MiB, 1);
	for (int i = 0; i < 400; i++) { /* 40 s */
		rig_write(r, file, 4 * MiB + (i % 40) * 64 * KiB, 64 * KiB, 1);
		rig_pass(r, 100 * MSEC);
	}
	assert_int_equal(dc_map_count(&file->map, 0, 4 * MiB / PAGE - 1), 0);
	before = atomic_load(&r->now) - file->dirtied_when;
	assert_true(before < 2 * EXPIRE + 2 * TICK);
	dc_file_put(file);
	rig_free(r);
}

static void test_kicks_coalesce(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	uint64_t kicks, wakes;

	(void)state;
	rig_settle(r);
	kicks = rig_counter(r, DC_CTR_KICKS);
	wakes = r->fake->wakes;
	rig_write(r, file, 0, 16 * MiB, 1);
	assert_int_equal(rig_counter(r, DC_CTR_KICKS), kicks);
	rig_write(r, file, 16 * MiB, 32 * MiB, 1); /* 32 writes over the level */
	assert_int_equal(rig_counter(r, DC_CTR_KICKS), kicks + 1);
	assert_int_equal(r->fake->wakes, wakes + 1);
	dc_kick(r->exp);
	dc_kick(r->exp);
	assert_int_equal(rig_counter(r, DC_CTR_KICKS), kicks + 1);
	assert_int_equal(rig_counter(r, DC_CTR_KICKS_COALESCED), 2);
	assert_int_equal(r->fake->wakes, wakes + 1);
	/* Once it has caught up, the next excess kicks again. */
	rig_settle(r);
	assert_false(atomic_load(&r->exp->kicked));
	rig_write(r, file, 48 * MiB, 16 * MiB, 1);
	assert_int_equal(rig_counter(r, DC_CTR_KICKS), kicks + 2);
	dc_file_put(file);
	rig_free(r);
}

static void test_lower_background_is_work_at_once(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 15 * MiB, 1);
	rig_settle(r);
	assert_int_equal(written(r), 0);
	r->params.dirty_background_bytes = 1 * MiB;
	dc_export_set_params(r->exp, &r->params);
	rig_settle(r);
	assert_true(rig_stats(r).dirty <= 1 * MiB);
	dc_file_put(file);
	rig_free(r);
}

static void test_window_bounds_what_is_in_flight(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .limit = 256 * MiB, .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_write(r, file, 0, 200 * MiB, 1);
	rig_settle(r);
	/* Nothing is known of the device yet: 8 MiB, and less than a turn over it. */
	assert_in_range(rig_stats(r).writeback, 8 * MiB, 12 * MiB - PAGE);
	assert_int_equal(rig_stats(r).dirty + rig_stats(r).writeback, 200 * MiB);
	assert_int_equal(fake_release(r->fake, 1, 0), 1);
	rig_settle(r);
	assert_in_range(rig_stats(r).writeback, 8 * MiB, 12 * MiB - PAGE);
	dc_file_put(file);
	rig_free(r);
}

static void test_window_follows_the_device(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .limit = 256 * MiB, .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	for (int i = 0; i < 60; i++) { /* 8 MiB at a time, each in 400 ms: 20 MiB/s */
		uint64_t room = 200 * MiB - rig_stats(r).dirty - rig_stats(r).writeback;

		rig_write(r, file, 0, room, 1);
		rig_settle(r);
		atomic_fetch_add(&r->now, 400 * MSEC);
		fake_release(r->fake, 1, 0);
		rig_poll(r, 1);
	}
	rig_settle(r);
	/* 100 ms of it would be 2 MiB, so the least allowed: 8 MiB, and one turn over it at most. */
	assert_true(rig_stats(r).writeback >= 8 * MiB);
	assert_true(rig_stats(r).writeback < 8 * MiB + 4 * MiB);
	dc_file_put(file);
	rig_free(r);
}

/* ---- in which order ---- */

static void test_oldest_file_first(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file[3];

	(void)state;
	for (unsigned int i = 0; i < 3; i++)
		file[i] = rig_file(r, i);
	rig_write(r, file[2], 0, 8 * MiB, 1);
	rig_write(r, file[0], 0, 8 * MiB, 1);
	rig_write(r, file[1], 0, 8 * MiB, 1);
	rig_settle(r);
	assert_int_equal(written(r), 8 * MiB);
	assert_int_equal(r->fake->call[0].fd, file[2]->fd);
	fake_forget_calls(r->fake);
	rig_write(r, file[2], 0, 8 * MiB, 1); /* now the youngest */
	rig_settle(r);
	assert_int_equal(written(r), 8 * MiB);
	assert_int_equal(r->fake->call[0].fd, file[0]->fd);
	for (unsigned int i = 0; i < 3; i++)
		dc_file_put(file[i]);
	rig_free(r);
}

static void test_oldest_of_many(void **state)
{
	enum { FILES = 500 };
	struct rig *r = rig_new(&(struct rig_options){ .max_open_files = FILES });
	static struct dc_file *file[FILES], *by_fd[4096];
	uint64_t when = 0;

	(void)state;
	srand(7);
	for (unsigned int i = 0; i < FILES; i++) {
		file[i] = rig_file(r, i);
		by_fd[file[i]->fd] = file[i];
	}
	for (unsigned int i = 0; i < 2000; i++) {
		struct dc_file *f = file[rand() % FILES];

		if (rand() % 8 == 0)
			dc_file_truncated(f, 0, dc_file_seq(f));
		else
			rig_write(r, f, rand() % 4 * PAGE, PAGE, 1);
		for (uint32_t k = 1; k < r->exp->heap_nr; k++)
			assert_true(r->exp->heap[(k - 1) / 2]->dirtied_when <=
				    r->exp->heap[k]->dirtied_when);
	}
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	atomic_fetch_add(&r->now, EXPIRE + TICK);
	rig_settle(r);
	assert_true(r->fake->submitted[DC_OP_WRITEBACK] > 100);
	for (unsigned int i = 0; i < r->fake->nr_calls; i++) {
		if (r->fake->call[i].kind != DC_OP_WRITEBACK)
			continue;
		assert_true(by_fd[r->fake->call[i].fd]->dirtied_when >= when);
		when = by_fd[r->fake->call[i].fd]->dirtied_when;
	}
	for (unsigned int i = 0; i < FILES; i++)
		dc_file_put(file[i]);
	rig_free(r);
}

static void test_turns_ascend_and_end_on_windows(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .limit = 256 * MiB, .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);
	uint64_t at = 3 * PAGE;

	(void)state;
	rig_write(r, file, 3 * PAGE, 100 * MiB, 1); /* begins in the middle of a window */
	rig_settle(r);
	for (unsigned int i = 0; i < r->fake->nr_calls; i++) {
		const struct fake_call *c = &r->fake->call[i];

		if (c->kind != DC_OP_WRITEBACK)
			continue;
		assert_int_equal(c->offset, at);
		at += c->len;
		/* The first pass of a file is what its first write touched: one window. */
		if (c->offset >= 2 * MiB)
			assert_in_range(c->len, 2 * MiB, 32 * MiB);
		assert_int_equal(at % (2 * MiB), 0);
	}
	dc_file_put(file);
	rig_free(r);
}

static void test_exports_take_turns(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_export *other = dc_export_new(r->dev, 8, "/other", &r->params), *mine = r->exp;
	struct dc_file *a = rig_file(r, 1), *b;
	uint64_t done[2] = { 0 };
	int fd[2];

	(void)state;
	r->exp = other;
	b = rig_file(r, 2);
	rig_write(r, b, 0, 48 * MiB, 1);
	r->exp = mine;
	rig_write(r, a, 0, 48 * MiB, 1);
	fd[0] = a->fd;
	fd[1] = b->fd;
	rig_settle(r);
	for (unsigned int i = 0; i < r->fake->nr_calls; i++) {
		const struct fake_call *c = &r->fake->call[i];

		if (c->kind != DC_OP_WRITEBACK)
			continue;
		assert_true(c->fd == fd[0] || c->fd == fd[1]);
		done[c->fd == fd[1]] += c->len;
		/* Never further apart than two turns of the size that the device is given then. */
		if (done[0] < 40 * MiB && done[1] < 40 * MiB)
			assert_true(done[0] <= done[1] + 16 * MiB && done[1] <= done[0] + 16 * MiB);
	}
	dc_file_put(a);
	dc_file_put(b);
	assert_int_equal(dc_export_drain(other, 60 * SEC), 0);
	assert_true(dc_export_free(other, 60 * SEC));
	rig_free(r);
}

/* ---- drop-behind ---- */

struct drop_check {
	struct rig *r;
	struct dc_file *file;
	unsigned int drops;
};

static void check_drop(void *arg, const struct fake_call *call)
{
	struct drop_check *d = arg;

	if (call->kind != DC_OP_DROP)
		return;
	d->drops++;
	assert_true(call->len > 0);
	assert_int_equal(call->offset % (2 * MiB), 0);
	assert_int_equal(call->len % (2 * MiB), 0);
	assert_int_equal(call->fd, d->file->fd);
	assert_int_equal(dc_map_count(&d->file->map, call->offset / PAGE,
				      (call->offset + call->len) / PAGE - 1),
			 0);
}

static void test_drop_whole_clean_windows(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);
	struct drop_check d = { r, file, 0 };

	(void)state;
	r->fake->on_call = check_drop;
	r->fake->arg = &d;
	srand(11);
	for (int i = 0; i < 3000; i++) {
		uint64_t off = (uint64_t)(rand() % (48 * 256)) * PAGE;
		uint64_t len = (uint64_t)(rand() % 256 + 1) * PAGE, pages = len / PAGE;

		if (dc_admit(r->exp, pages)) {
			rig_begin(r, file);
			dc_write_done(file, off, len, pages, 1, dc_file_errors(file), false);
		}
		r->fake->hold = rand() % 2 ? FAKE_BIT(DC_OP_WRITEBACK) : 0;
		if (rand() % 4 == 0)
			fake_release(r->fake, 1 + (unsigned int)rand() % 3, 0);
		if (rand() % 50 == 0) {
			r->fake->hold = 0;
			fake_release(r->fake, UINT32_MAX, 0);
			rig_settle(r);
			assert_int_equal(rig_commit(r, file, 1), 0);
		}
		rig_poll(r, 1);
	}
	assert_true(d.drops > 100);
	r->fake->on_call = NULL;
	dc_file_put(file);
	rig_free(r);
}

static void test_no_drop_when_off_or_failed(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	r->fake->fail[DC_OP_WRITEBACK] = -EIO;
	r->fake->fail_n[DC_OP_WRITEBACK] = 100;
	rig_write(r, file, 0, 16 * MiB, 1);
	rig_settle(r);
	assert_true(r->fake->submitted[DC_OP_WRITEBACK] > 0);
	assert_int_equal(r->fake->submitted[DC_OP_DROP], 0);
	r->fake->fail_n[DC_OP_WRITEBACK] = 0;
	r->params.drop_behind = 0;
	dc_export_set_params(r->exp, &r->params);
	rig_write(r, file, 0, 16 * MiB, 1);
	rig_settle(r);
	rig_commit(r, file, 1);
	assert_int_equal(r->fake->submitted[DC_OP_DROP] + r->fake->drops, 0);
	r->params.drop_behind = 1;
	dc_export_set_params(r->exp, &r->params);
	rig_write(r, file, 0, 16 * MiB, 1);
	rig_settle(r);
	assert_true(r->fake->submitted[DC_OP_DROP] > 0);
	dc_file_put(file);
	rig_free(r);
}

/* ---- claims that end without I/O ---- */

static void test_truncate(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	dc_file_truncated(file, 1 * MiB + 1, dc_file_seq(file));
	/* The page with the new end stays. */
	assert_int_equal(rig_stats(r).dirty, 1 * MiB + PAGE);
	assert_int_equal(rig_counter(r, DC_CTR_CANCELLED), 7 * MiB - PAGE);
	dc_file_truncated(file, 1 * GiB, dc_file_seq(file));
	assert_int_equal(rig_stats(r).dirty, 1 * MiB + PAGE);
	dc_file_truncated(file, UINT64_MAX, dc_file_seq(file));
	assert_int_equal(rig_stats(r).dirty, 1 * MiB + PAGE);
	dc_file_truncated(file, 0, dc_file_seq(file));
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_int_equal(rig_stats(r).dirty_files, 0);
	rig_check_sum(r, 0);
	rig_pass(r, 2 * EXPIRE);
	rig_settle(r);
	assert_int_equal(written(r), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A write recorded since the operation began: nobody knows which came first, the claim stays. */
static void test_truncate_with_a_write_meanwhile(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	uint64_t seq = dc_file_seq(file);

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	dc_file_truncated(file, 0, seq);
	assert_int_equal(rig_stats(r).dirty, 8 * MiB);
	dc_file_punched(file, 0, 4 * MiB, seq);
	assert_int_equal(rig_stats(r).dirty, 8 * MiB);
	dc_file_put(file);
	rig_free(r);
}

static int one_dirty_page(void *arg, int fd, uint64_t offset, uint64_t len, struct dc_cachestat *st)
{
	(void)arg;
	(void)fd;
	(void)offset;
	(void)len;
	*st = (struct dc_cachestat){ .cached = 1, .dirty = 1 };
	return 0;
}

/* An edge that another operation dirtied meanwhile, and left to the claim that was there: it stays. */
static void test_punch_with_an_edge_meanwhile(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	uint64_t seq;

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	seq = dc_file_seq(file);
	r->fake->cachestat = one_dirty_page;
	rig_begin(r, file);
	dc_file_edge(file, 1 * MiB + 5);
	dc_write_unpin(file);
	r->fake->cachestat = NULL;
	dc_file_punched(file, 0, 4 * MiB, seq);
	assert_int_equal(rig_stats(r).dirty, 8 * MiB);
	dc_file_punched(file, 0, 4 * MiB, dc_file_seq(file));
	assert_int_equal(rig_stats(r).dirty, 4 * MiB);
	dc_file_put(file);
	rig_free(r);
}

static void test_punch(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	uint64_t seq;

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	seq = dc_file_seq(file);
	dc_file_punched(file, 1, PAGE, seq); /* no whole page in it */
	dc_file_punched(file, 0, PAGE - 1, seq);
	dc_file_punched(file, 5, 0, seq);
	assert_int_equal(rig_stats(r).dirty, 8 * MiB);
	dc_file_punched(file, 1, 3 * PAGE - 1, seq); /* pages 1 and 2 */
	assert_int_equal(rig_stats(r).dirty, 8 * MiB - 2 * PAGE);
	dc_file_punched(file, 7 * MiB, UINT64_MAX, seq); /* to the end, overflowing */
	assert_int_equal(rig_stats(r).dirty, 7 * MiB - 2 * PAGE);
	dc_file_punched(file, 0, 8 * MiB, seq);
	assert_int_equal(rig_stats(r).dirty, 0);
	rig_check_sum(r, 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_unlink(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	int fd = file->fd;

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	dc_file_check_links(file); /* still has its name */
	assert_int_equal(rig_stats(r).dirty, 8 * MiB);
	rig_unlink(r, 1);
	dc_file_check_links(file);
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_int_equal(rig_stats(r).unsynced_files, 0);
	assert_false(fd_is_open(fd));
	rig_pass(r, 2 * EXPIRE);
	rig_settle(r);
	assert_int_equal(r->fake->nr_calls, 0); /* no I/O for it */
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

static void test_unlink_in_flight(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);
	int fd = file->fd;
	uint64_t wb;

	(void)state;
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_write(r, file, 0, 60 * MiB, 1);
	rig_settle(r);
	wb = rig_stats(r).writeback;
	assert_true(wb >= 8 * MiB);
	assert_true(rig_stats(r).dirty > 0);
	rig_unlink(r, 1);
	dc_file_check_links(file);
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_int_equal(rig_stats(r).writeback, wb);
	assert_true(fd_is_open(fd)); /* the device still works on it */
	dc_file_put(file);
	fake_release(r->fake, 1, 0);
	rig_poll(r, 1);
	assert_true(fd_is_open(fd));
	fake_release(r->fake, UINT32_MAX, 0);
	rig_settle(r);
	assert_false(fd_is_open(fd));
	assert_int_equal(rig_stats(r).files, 0);
	rig_check_sum(r, 0);
	rig_free(r);
}

/* Removed behind our back: seen at its next turn. */
static void test_name_lost(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *a = rig_file(r, 1), *b = rig_file(r, 2);

	(void)state;
	rig_write(r, a, 0, 10 * MiB, 1);
	rig_unlink(r, 1);
	rig_write(r, b, 0, 10 * MiB, 1);
	rig_settle(r);
	assert_int_equal(written(r), 0);
	assert_int_equal(rig_stats(r).dirty, 10 * MiB);
	assert_int_equal(a->fd, -1);
	dc_file_put(a);
	dc_file_put(b);
	rig_free(r);
}

/* Open though deleted, a file may still be written; nothing goes wrong, and it ends. */
static void test_write_after_unlink(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	int fd = dup(file->fd), copy;

	(void)state;
	rig_write(r, file, 0, 1 * MiB, 1);
	rig_unlink(r, 1);
	dc_file_check_links(file);
	assert_false(dc_write_begin(file));
	copy = dup(fd);
	dc_file_set_fd(file, copy);
	rig_write(r, file, 0, 1 * MiB, 1);
	assert_int_equal(rig_stats(r).dirty, 1 * MiB);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(rig_stats(r).dirty, 0);
	rig_pass(r, 2 * EXPIRE);
	rig_settle(r);
	assert_false(fd_is_open(copy));
	close(fd);
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* ---- what a device may answer ---- */

static void test_refused_operation_falls_back(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	r->fake->fail[DC_OP_WRITEBACK] = -ENOSYS;
	r->fake->fail_n[DC_OP_WRITEBACK] = 1000;
	rig_write(r, file, 0, 8 * MiB, 1);
	rig_settle(r);
	assert_true(r->fake->directs > 0);
	assert_int_equal(r->fake->directs, r->fake->submitted[DC_OP_WRITEBACK]);
	assert_int_equal(r->fake->syncs, 0);
	assert_true(r->logged > 0);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 0);
	assert_int_equal(rig_commit(r, file, 1), 0);

	/* Refused there as well: fdatasync writes anything. */
	fake_forget_calls(r->fake);
	r->fake->fail_direct = -ENOSYS;
	r->fake->fail_direct_n = 1000;
	rig_write(r, file, 0, 8 * MiB, 1);
	rig_settle(r);
	assert_true(r->fake->syncs > 0);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 0);

	/* And its error is an error. */
	r->fake->fail_sync = -ENOSPC;
	r->fake->fail_sync_n = 1;
	rig_write(r, file, 0, 8 * MiB, 1);
	rig_settle(r);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 1);
	assert_int_equal(rig_commit(r, file, 1), -ENOSPC);
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	rig_free(r);
}

/* A kernel in which somebody holds the pages for a while: clean, cached, not to be dropped. */
static int held_cachestat(void *arg, int fd, uint64_t offset, uint64_t len, struct dc_cachestat *st)
{
	(void)fd;
	(void)offset;
	memset(st, 0, sizeof(*st));
	st->cached = *(bool *)arg ? len >> DC_PAGE_SHIFT : 0;
	return 0;
}

static void test_drop_is_tried_again(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);
	bool held = false;
	uint64_t drops;

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	held = true;
	r->fake->cachestat = held_cachestat;
	r->fake->arg = &held;
	rig_settle(r);
	drops = r->fake->submitted[DC_OP_DROP];
	assert_true(drops > 0);
	/* Not at once; after a while; not for ever. */
	rig_settle(r);
	assert_int_equal(r->fake->submitted[DC_OP_DROP], drops);
	r->now += 30 * DC_NS_PER_MS;
	rig_settle(r);
	assert_true(r->fake->submitted[DC_OP_DROP] > drops);
	for (int i = 0; i < 50; i++) {
		r->now += 1000 * DC_NS_PER_MS;
		rig_settle(r);
	}
	assert_true(r->fake->submitted[DC_OP_DROP] <= drops * 7);
	drops = r->fake->submitted[DC_OP_DROP];
	/* And not again once it succeeded. */
	held = false;
	r->now += 1000 * DC_NS_PER_MS;
	rig_settle(r);
	assert_int_equal(r->fake->submitted[DC_OP_DROP], drops);
	r->fake->cachestat = NULL;
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_failed_drop_is_ignored(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	r->fake->fail[DC_OP_DROP] = -EIO;
	r->fake->fail_n[DC_OP_DROP] = 1000;
	rig_write(r, file, 0, 8 * MiB, 1);
	rig_settle(r);
	assert_true(r->fake->submitted[DC_OP_DROP] > 0);
	assert_int_equal(rig_counter(r, DC_CTR_ERRORS), 0);
	assert_int_equal(rig_commit(r, file, 1), 0);
	dc_file_put(file);
	rig_free(r);
}

/* ---- inflation: what the kernel counts beyond what was written ---- */

struct kernel {
	bool cached;
	uint64_t dirty; /* of each window */
	int err;
	unsigned int asked;
};

static int kernel_says(void *arg, int fd, uint64_t offset, uint64_t len, struct dc_cachestat *st)
{
	struct kernel *k = arg;

	(void)fd;
	(void)offset;
	k->asked++;
	st->cached = k->cached ? len / PAGE : 0;
	st->dirty = dc_min_u64(k->dirty, len / PAGE);
	st->writeback = 0;
	return k->err;
}

static void test_inflation(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct kernel k = { 0 };

	(void)state;
	/* Without cachestat: the pages written. */
	rig_begin(r, file);
	assert_int_equal(dc_write_need(file, 5 * PAGE, PAGE), 1);
	r->fake->cachestat = kernel_says;
	r->fake->arg = &k;
	k.err = -ENOSYS;
	assert_int_equal(dc_write_need(file, 5 * PAGE, PAGE), 1);
	/* Nothing cached there: the pages written. */
	k.err = 0;
	assert_int_equal(dc_write_need(file, 5 * PAGE, PAGE), 1);
	assert_int_equal(dc_write_need(file, 5 * PAGE + 1, PAGE), 2);
	/* Cached: the windows touched; unless the write is whole windows. */
	k.cached = true;
	assert_int_equal(dc_write_need(file, 5 * PAGE, PAGE), 512);
	assert_int_equal(dc_write_need(file, 2 * MiB - PAGE, 2 * PAGE), 1024);
	assert_int_equal(dc_write_windows(2 * MiB - PAGE, 2 * PAGE), 1024);
	k.asked = 0;
	assert_int_equal(dc_write_need(file, 2 * MiB, 4 * MiB), 1024);
	assert_int_equal(k.asked, 0);

	/* 4 KiB, of which the kernel made 64 KiB dirty. */
	k.dirty = 16;
	assert_true(dc_admit(r->exp, 512));
	dc_write_done(file, 5 * PAGE, PAGE, 512, 1, dc_file_errors(file), false);
	assert_int_equal(rig_stats(r).dirty, 16 * PAGE);
	assert_int_equal(rig_counter(r, DC_CTR_INFLATED), 15 * PAGE);
	rig_check_sum(r, 0);
	/* Never less than what was written, never more than was reserved. */
	k.dirty = 0;
	assert_true(dc_admit(r->exp, 512));
	rig_begin(r, file);
	dc_write_done(file, 2 * MiB, 3 * PAGE, 512, 1, dc_file_errors(file), false);
	assert_int_equal(rig_stats(r).dirty, 19 * PAGE);
	k.dirty = 512;
	assert_true(dc_admit(r->exp, 100));
	rig_begin(r, file);
	dc_write_done(file, 4 * MiB, PAGE, 100, 1, dc_file_errors(file), false);
	assert_int_equal(rig_stats(r).dirty, 119 * PAGE);
	rig_check_sum(r, 0);
	assert_int_equal(rig_commit(r, file, 1), 0);
	assert_int_equal(rig_stats(r).dirty, 0);
	r->fake->cachestat = NULL;
	dc_file_put(file);
	rig_free(r);
}

/* ---- descriptors ---- */

static void test_idle_descriptor_is_closed(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	int fd = file->fd;

	(void)state;
	rig_pass(r, 4 * SEC);
	assert_true(fd_is_open(fd));
	rig_begin(r, file); /* used: the time begins anew */
	dc_write_unpin(file);
	rig_pass(r, 4 * SEC);
	assert_true(fd_is_open(fd));
	rig_pass(r, 2 * SEC);
	assert_false(fd_is_open(fd));
	assert_false(dc_write_begin(file));

	/* Not while it is dirty, nor while it is unsynced. */
	dc_file_set_fd(file, rig_open(r, 1));
	rig_write(r, file, 0, PAGE, 1);
	r->fake->fail[DC_OP_SYNC] = -ENOSYS; /* never gets synced by itself */
	r->fake->fail_n[DC_OP_SYNC] = 1000;
	for (int i = 0; i < 100; i++)
		rig_pass(r, 1 * SEC);
	assert_int_equal(rig_stats(r).dirty, 0);
	assert_true(file->fd >= 0);
	r->fake->fail_n[DC_OP_SYNC] = 0;
	assert_int_equal(rig_commit(r, file, 1), 0);
	rig_pass(r, 6 * SEC);
	assert_int_equal(file->fd, -1);
	dc_file_put(file);
	rig_free(r);
}

static void test_cap_on_idle_descriptors(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .max_open_files = 10 });
	struct dc_file *file[30];
	int open_now = 0;

	(void)state;
	for (unsigned int i = 0; i < 30; i++)
		file[i] = rig_file(r, i);
	rig_pass(r, 300 * MSEC);
	for (unsigned int i = 0; i < 30; i++)
		open_now += file[i]->fd >= 0;
	assert_int_equal(open_now, 10);
	for (unsigned int i = 20; i < 30; i++)
		assert_true(file[i]->fd >= 0); /* the oldest were closed */
	for (unsigned int i = 0; i < 30; i++)
		dc_file_put(file[i]);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

static void test_second_descriptor_is_closed(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	int one = file->fd, two = rig_open(r, 1);

	(void)state;
	dc_file_set_fd(file, two);
	assert_int_equal(file->fd, one);
	assert_false(fd_is_open(two));
	dc_file_put(file);
	assert_false(fd_is_open(one)); /* the last reference takes it along */
	rig_free(r);
}

/* ---- the lives of files and exports ---- */

static void test_file_outlives_its_handle(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1), *found;
	unsigned int key = 1;

	(void)state;
	rig_write(r, file, 0, 1 * MiB, 1);
	dc_file_put(file);
	found = dc_file_find(r->exp, &key, sizeof(key));
	assert_ptr_equal(found, file);
	dc_file_put(found);
	assert_int_equal(rig_stats(r).files, 1);
	for (int i = 0; i < 30 && rig_stats(r).files; i++) {
		rig_pass(r, 1 * SEC);
		rig_settle(r);
	}
	/* Written, then synced, then forgotten. */
	assert_int_equal(rig_stats(r).files, 0);
	assert_int_equal(r->fake->submitted[DC_OP_SYNC], 1);
	assert_null(dc_file_find(r->exp, &key, sizeof(key)));
	rig_free(r);
}

static void test_keys(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file[300];
	char key[DC_KEY_MAX + 1];

	(void)state;
	memset(key, 'k', sizeof(key));
	for (unsigned int i = 0; i <= DC_KEY_MAX; i++) /* prefixes of each other */
		file[i] = dc_file_get(r->exp, key, i);
	for (unsigned int i = 0; i <= DC_KEY_MAX; i++)
		for (unsigned int j = 0; j < i; j++)
			assert_ptr_not_equal(file[i], file[j]);
	for (unsigned int i = 0; i <= DC_KEY_MAX; i++) {
		struct dc_file *again = dc_file_get(r->exp, key, i);

		assert_ptr_equal(again, file[i]);
		dc_file_put(again);
		dc_file_put(file[i]);
	}
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

static void test_drain(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 10 * MiB, 1);
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	assert_int_equal(dc_export_drain(r->exp, 1 * SEC), 10 * MiB); /* a dead device */
	r->fake->hold = 0;
	fake_release(r->fake, UINT32_MAX, 0);
	/* Slow as it was measured to be now, it gets the time it needs. */
	assert_int_equal(dc_export_drain(r->exp, 60 * SEC), 0);
	assert_int_equal(rig_counter(r, DC_CTR_CLEANED_SHUTDOWN), 10 * MiB);
	dc_file_put(file);
	rig_free(r);
}

static void test_free_with_dirty_files(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *kept = rig_file(r, 1);
	int fd = kept->fd;

	(void)state;
	for (unsigned int i = 2; i < 40; i++) {
		struct dc_file *file = rig_file(r, i);

		rig_write(r, file, 0, 1 * MiB, i);
		if (i % 3 == 0)
			dc_file_error(file, -EIO); /* owes an error */
		dc_file_put(file);
	}
	rig_write(r, kept, 0, 8 * MiB, 1);
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	rig_poll(r, 2);
	assert_true(r->fake->nr_held > 0);
	r->fake->hold = 0;
	fake_release(r->fake, UINT32_MAX, 0);
	/* Neither drained nor closed. A file that is still referenced stays as long as that. */
	assert_true(dc_export_free(r->exp, 60 * SEC));
	assert_false(fd_is_open(fd));
	assert_int_equal(kept->map.nr_pages, 0);
	dc_file_put(kept);
	rig_free_engine(r);
}

/* A file that its owner still holds when the export has ended, and writes to: nothing of it may
 * reach the device's lists, which the export is not on any more. */
static void test_write_after_free(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 1 * MiB });
	struct dc_file *kept = rig_file(r, 1);

	(void)state;
	rig_settle(r);
	assert_true(dc_export_free(r->exp, 60 * SEC));
	rig_write(r, kept, 0, 8 * MiB, 1);
	assert_int_equal(rig_commit(r, kept, 1), 0);
	dc_file_put(kept); /* and with it the export */
	rig_poll(r, 2);
	assert_true(TAILQ_EMPTY(&r->dev->active));
	assert_true(TAILQ_EMPTY(&r->dev->kicked));
	rig_free_engine(r);
}

static void count_device(void *arg, const struct dc_device_stats *stats)
{
	assert_string_equal(stats->backend, "fake");
	++*(int *)arg;
}

static void test_devices(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	int n = 0, err;

	(void)state;
	assert_ptr_equal(dc_device_get(r->eng, 1, fake_make, &err), r->dev);
	dc_engine_devices(r->eng, count_device, &n);
	assert_int_equal(n, 1);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_below_background),
		cmocka_unit_test(test_down_to_background),
		cmocka_unit_test(test_expire),
		cmocka_unit_test(test_expire_of_a_busy_file),
		cmocka_unit_test(test_kicks_coalesce),
		cmocka_unit_test(test_lower_background_is_work_at_once),
		cmocka_unit_test(test_window_bounds_what_is_in_flight),
		cmocka_unit_test(test_window_follows_the_device),
		cmocka_unit_test(test_oldest_file_first),
		cmocka_unit_test(test_oldest_of_many),
		cmocka_unit_test(test_turns_ascend_and_end_on_windows),
		cmocka_unit_test(test_exports_take_turns),
		cmocka_unit_test(test_drop_whole_clean_windows),
		cmocka_unit_test(test_no_drop_when_off_or_failed),
		cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_truncate_with_a_write_meanwhile),
		cmocka_unit_test(test_punch_with_an_edge_meanwhile),
		cmocka_unit_test(test_punch),
		cmocka_unit_test(test_unlink),
		cmocka_unit_test(test_unlink_in_flight),
		cmocka_unit_test(test_name_lost),
		cmocka_unit_test(test_write_after_unlink),
		cmocka_unit_test(test_refused_operation_falls_back),
		cmocka_unit_test(test_drop_is_tried_again),
		cmocka_unit_test(test_failed_drop_is_ignored),
		cmocka_unit_test(test_inflation),
		cmocka_unit_test(test_idle_descriptor_is_closed),
		cmocka_unit_test(test_cap_on_idle_descriptors),
		cmocka_unit_test(test_second_descriptor_is_closed),
		cmocka_unit_test(test_file_outlives_its_handle),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_drain),
		cmocka_unit_test(test_free_with_dirty_files),
		cmocka_unit_test(test_write_after_free),
		cmocka_unit_test(test_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
