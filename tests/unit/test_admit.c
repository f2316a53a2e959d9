/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Admission without threads: the budget is exact to the page, parked writes come in fairly and in
 * order, who fills Parked_Bytes is held back and let go again, and limits change live.
 */
#include "rig.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- a parked write that only notes when it ran ---- */

struct parked {
	struct dc_waiter w;
	int conn, nr, status;
	bool ran;
	unsigned int resumed_before; /* rig's count when it ran */
};

static struct rig *rig;
static struct parked *order[4096];
static unsigned int nr_run;

static void note_run(struct dc_waiter *w, int status)
{
	struct parked *p = container_of_dc(w, struct parked, w);

	assert_false(p->ran);
	p->ran = true;
	p->status = status;
	p->resumed_before = rig->resumed;
	order[nr_run++] = p;
}

static struct parked *parked_new(int conn, int nr, uint64_t bytes)
{
	struct parked *p = calloc(1, sizeof(*p));

	p->conn = conn;
	p->nr = nr;
	p->w.bytes = bytes;
	p->w.pages = dc_write_pages(0, bytes);
	p->w.client = (uint64_t)conn;
	p->w.connection = (void *)(uintptr_t)(conn * 64 + 64);
	p->w.run = note_run;
	return p;
}

static void free_run(void)
{
	for (unsigned int i = 0; i < nr_run; i++)
		free(order[i]);
	nr_run = 0;
}

static struct rig *setup(uint64_t limit, uint64_t background)
{
	nr_run = 0;
	rig = rig_new(&(struct rig_options){ .limit = limit, .background = background });
	return rig;
}

static void finish(void)
{
	rig_free(rig);
	free_run();
}

/* Takes everything that is left of the budget, page by page. */
static uint64_t take_rest(struct rig *r)
{
	uint64_t n = 0;

	while (dc_admit(r->exp, 1))
		n++;
	return n;
}

/* ---- tests ---- */

static void test_exact_to_the_page(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = 8 * MiB / PAGE;

	(void)state;
	/* Whatever slots keep ready, the last page can be had, and not one more. */
	assert_int_equal(take_rest(r), pages);
	assert_int_equal(atomic_load(&r->exp->used), pages);
	rig_check_sum(r, pages);
	assert_false(dc_admit(r->exp, 1));
	dc_unreserve(r->exp, 1);
	assert_true(dc_admit(r->exp, 1));
	assert_false(dc_admit(r->exp, 1));
	assert_int_equal(rig_stats(r).reserved, 8 * MiB);
	dc_unreserve(r->exp, pages);
	rig_check_sum(r, 0);
	assert_false(dc_admit(r->exp, pages + 1));
	assert_true(dc_admit(r->exp, pages));
	dc_unreserve(r->exp, pages);
	finish();
}

static void test_random_sizes_never_over(void **state)
{
	struct rig *r = setup(16 * MiB, 4 * MiB);
	uint64_t limit = 16 * MiB / PAGE, mine = 0, held[64] = { 0 };

	(void)state;
	srand(1);
	for (int i = 0; i < 200000; i++) {
		int k = rand() % 64;
		uint64_t n = rand() % 4 ? rand() % 4 + 1 : rand() % 256 + 1;

		if (held[k]) {
			dc_unreserve(r->exp, held[k]);
			mine -= held[k];
			held[k] = 0;
		} else if (dc_admit(r->exp, n)) {
			held[k] = n;
			mine += n;
			assert_true(mine <= limit);
		} else {
			assert_true(mine + n > limit); /* never refused for nothing */
		}
		assert_true(atomic_load(&r->exp->used) <= limit);
		if (i % 1000 == 0)
			rig_check_sum(r, mine);
	}
	dc_unreserve(r->exp, mine);
	finish();
}

static void test_short_and_failed_writes(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	assert_true(dc_admit(r->exp, 256));
	rig_begin(r, file);
	dc_write_done(file, 0, 5000, 256, 1, dc_file_errors(file), false); /* short */
	assert_int_equal(rig_stats(r).dirty, 2 * PAGE);
	rig_check_sum(r, 0);
	assert_true(dc_admit(r->exp, 256));
	rig_begin(r, file);
	dc_write_done(file, 0, 0, 256, 1, dc_file_errors(file), false); /* failed */
	assert_int_equal(rig_stats(r).dirty, 2 * PAGE);
	assert_int_equal(rig_counter(r, DC_CTR_WRITES), 1);
	assert_int_equal(rig_counter(r, DC_CTR_WRITTEN_CLIENT), 5000);
	assert_int_equal(rig_counter(r, DC_CTR_DIRTIED), 2 * PAGE);
	/* The same pages once more cost nothing. */
	assert_true(dc_admit(r->exp, 2));
	rig_begin(r, file);
	dc_write_done(file, 0, 5000, 2, 1, dc_file_errors(file), false);
	assert_int_equal(rig_stats(r).dirty, 2 * PAGE);
	rig_check_sum(r, 0);
	dc_file_put(file);
	finish();
}

static void test_park_runs_on_release(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct parked *p = parked_new(1, 0, 1 * MiB);
	uint64_t pages = take_rest(r);

	(void)state;
	assert_int_equal(dc_park(r->exp, &p->w), DC_PARKED);
	assert_int_equal(rig_stats(r).parked, 1);
	assert_int_equal(rig_stats(r).parked_bytes, 1 * MiB);
	assert_true(dc_near_limit(r->exp));
	dc_unreserve(r->exp, 255);
	assert_false(p->ran);
	/* While one waits nobody overtakes it, not even with a page. */
	assert_false(dc_admit(r->exp, 1));
	dc_unreserve(r->exp, 1);
	assert_true(p->ran);
	assert_int_equal(p->status, 0);
	assert_int_equal(rig_stats(r).parked, 0);
	assert_int_equal(rig_counter(r, DC_CTR_PARKED), 1);
	assert_true(rig_counter(r, DC_CTR_PARKED_NS) > 0);
	dc_unreserve(r->exp, pages);
	finish();
}

static void test_park_with_room_is_admitted(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct parked *p = parked_new(1, 0, 1 * MiB);

	(void)state;
	assert_int_equal(dc_park(r->exp, &p->w), DC_ADMITTED);
	assert_false(p->ran);
	assert_int_equal(rig_counter(r, DC_CTR_PARKED), 0);
	dc_unreserve(r->exp, p->w.pages);
	free(p);
	finish();
}

/* What fits behind a write that does not fit yet must not starve it. */
static void test_small_do_not_starve_large(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct parked *big = parked_new(1, 0, 1 * MiB), *small[4];
	uint64_t pages = take_rest(r);

	(void)state;
	assert_int_equal(dc_park(r->exp, &big->w), DC_PARKED);
	for (int i = 0; i < 4; i++) {
		small[i] = parked_new(1, i + 1, PAGE);
		dc_park(r->exp, &small[i]->w);
	}
	dc_unreserve(r->exp, 100);
	assert_int_equal(nr_run, 0);
	dc_unreserve(r->exp, 160);
	assert_int_equal(nr_run, 5);
	assert_ptr_equal(order[0], big);
	for (int i = 0; i < 4; i++)
		assert_ptr_equal(order[i + 1], small[i]);
	dc_unreserve(r->exp, pages);
	finish();
}

/* One client with 256 writes waiting, one with 2: as many bytes each. */
static void test_fair_between_clients(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);

	(void)state;
	r->params.parked_bytes = 1 * GiB;
	dc_export_set_params(r->exp, &r->params);
	for (int i = 0; i < 256; i++)
		dc_park(r->exp, &parked_new(1, i, 1 * MiB)->w);
	for (int i = 0; i < 2; i++)
		dc_park(r->exp, &parked_new(2, i, 1 * MiB)->w);
	assert_int_equal(rig_stats(r).parked_connections, 2);
	for (int i = 0; i < 5; i++)
		dc_unreserve(r->exp, 256);
	assert_int_equal(nr_run, 5);
	/* Both of connection 2 are among the first five, alternating. */
	{
		int seen = 0;

		for (int i = 0; i < 5; i++)
			seen += order[i]->conn == 2;
		assert_int_equal(seen, 2);
	}
	for (int n = 5; n < 258; n++)
		dc_unreserve(r->exp, 256);
	assert_int_equal(nr_run, 258);
	for (unsigned int i = 1, last[3] = { 0 }; i < nr_run; i++) {
		/* In order within a connection. */
		assert_true(order[i]->nr >= (int)last[order[i]->conn]);
		last[order[i]->conn] = (unsigned int)order[i]->nr;
	}
	dc_unreserve(r->exp, pages);
	finish();
}

/* Fair in bytes, not in writes: 64 KiB writers are not sixteen times slower than 1 MiB writers. */
static void test_fair_in_bytes(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r), bytes[3] = { 0 };

	(void)state;
	r->params.parked_bytes = 1 * GiB;
	dc_export_set_params(r->exp, &r->params);
	for (int i = 0; i < 40; i++)
		dc_park(r->exp, &parked_new(1, i, 1 * MiB)->w);
	for (int i = 0; i < 640; i++)
		dc_park(r->exp, &parked_new(2, i, 64 * KiB)->w);
	while (nr_run < 680) {
		dc_unreserve(r->exp, 16);
		bytes[1] = bytes[2] = 0;
		for (unsigned int i = 0; i < nr_run; i++)
			bytes[order[i]->conn] += order[i]->w.bytes;
		if (nr_run < 600)
			assert_true(bytes[1] <= bytes[2] + 3 * MiB &&
				    bytes[2] <= bytes[1] + 3 * MiB);
	}
	dc_unreserve(r->exp, pages);
	finish();
}

static void test_many_clients_in_turn(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);
	unsigned int per[300] = { 0 };

	(void)state;
	r->params.parked_bytes = 1 * GiB;
	dc_export_set_params(r->exp, &r->params);
	for (int i = 0; i < 3; i++)
		for (int c = 0; c < 300; c++)
			dc_park(r->exp, &parked_new(c, i, 1 * MiB)->w);
	for (int i = 0; i < 900; i++) {
		dc_unreserve(r->exp, 256);
		assert_int_equal(nr_run, i + 1);
		per[order[i]->conn]++;
		if (i % 300 == 299)
			for (int c = 0; c < 300; c++)
				assert_int_equal(per[c], i / 300 + 1);
	}
	dc_unreserve(r->exp, pages);
	finish();
}

static void test_hold_and_resume(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);
	struct parked *other;
	int held_at = -1;

	(void)state;
	r->params.parked_bytes = 128 * MiB; /* one connection's share: a sixteenth of it */
	dc_export_set_params(r->exp, &r->params);
	for (int i = 0; i < 12; i++) {
		enum dc_parking a = dc_park(r->exp, &parked_new(1, i, 1 * MiB)->w);

		if (a == DC_PARKED_HOLD) {
			assert_int_equal(held_at, -1); /* said once */
			held_at = i;
		} else {
			assert_int_equal(a, DC_PARKED);
		}
	}
	assert_int_equal(held_at, 7); /* with it 8 MiB are parked */
	assert_int_equal(rig_stats(r).held, 1);
	assert_int_equal(rig_counter(r, DC_CTR_HELD), 1);
	/* Another connection is not concerned. */
	other = parked_new(2, 0, 1 * MiB);
	assert_int_equal(dc_park(r->exp, &other->w), DC_PARKED);

	/* It may be read from again once no more than half of its share is left. */
	while (r->resumed == 0) {
		dc_unreserve(r->exp, 256);
		assert_true(nr_run <= 13);
	}
	assert_ptr_equal(r->last_resumed, order[nr_run - 1]->w.connection);
	assert_int_equal(order[nr_run - 1]->conn, 1);
	/* Before that write ran, so that the connection still existed. */
	assert_int_equal(order[nr_run - 1]->resumed_before, 1);
	assert_int_equal(rig_stats(r).held, 0);
	while (nr_run < 13)
		dc_unreserve(r->exp, 256);
	assert_int_equal(r->resumed, 1);
	dc_unreserve(r->exp, pages);
	finish();
}

/* With many connections each one's share is smaller; and with three quarters of the cap taken,
 * whoever parks is held, however little it has. */
static void test_hold_of_many(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);
	unsigned int holds = 0;

	(void)state;
	r->params.parked_bytes = 16 * MiB;
	dc_export_set_params(r->exp, &r->params);
	for (int c = 0; c < 100; c++) {
		enum dc_parking a = dc_park(r->exp, &parked_new(c, 0, 128 * KiB)->w);

		holds += a == DC_PARKED_HOLD;
		if (c < 60) /* 8 MiB by 60 is more than 128 KiB each */
			assert_int_equal(a, DC_PARKED);
		if (c == 99)
			assert_int_equal(a, DC_PARKED_HOLD);
	}
	assert_int_equal(rig_stats(r).held, holds);
	while (nr_run < 100)
		dc_unreserve(r->exp, 32);
	assert_int_equal(r->resumed, holds);
	dc_unreserve(r->exp, pages);
	finish();
}

/* Whatever was answered HOLD is resumed, even when all that waits is cancelled. */
static void test_every_hold_is_resumed(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);
	unsigned int holds = 0;

	(void)state;
	r->params.parked_bytes = 8 * MiB;
	dc_export_set_params(r->exp, &r->params);
	srand(3);
	for (int i = 0; i < 2000; i++) {
		if (rand() % 2) {
			struct parked *p = parked_new(rand() % 5, i, (rand() % 256 + 1) * PAGE);
			enum dc_parking a = dc_park(r->exp, &p->w);

			holds += a == DC_PARKED_HOLD;
			if (a == DC_ADMITTED)
				pages += p->w.pages;
			if (a == DC_ADMITTED || a == DC_REFUSED)
				free(p);
		} else if (pages > 300) {
			uint64_t n = rand() % 300 + 1;
			unsigned int from = nr_run;

			pages -= n;
			dc_unreserve(r->exp, n);
			for (; from < nr_run; from++)
				pages += order[from]->w.pages;
		}
		assert_int_equal(rig_stats(r).held, holds - r->resumed);
	}
	assert_true(holds > 10);
	/* The rest is cancelled: nothing is reserved for those. */
	assert_int_equal(dc_export_drain(r->exp, 0), 0);
	assert_int_equal(r->resumed, holds);
	assert_int_equal(rig_stats(r).reserved, pages * PAGE);
	dc_unreserve(r->exp, pages);
	finish();
}

static void test_refused_far_over_the_cap(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);
	enum dc_parking a = DC_PARKED;
	struct parked *p = NULL;
	uint64_t bytes = 0;

	(void)state;
	r->params.parked_bytes = 4 * MiB;
	dc_export_set_params(r->exp, &r->params);
	for (int i = 0; i < 100 && a != DC_REFUSED; i++) {
		p = parked_new(1, i, 1 * MiB);
		a = dc_park(r->exp, &p->w);
		if (a != DC_REFUSED)
			bytes += 1 * MiB;
	}
	assert_int_equal(a, DC_REFUSED);
	free(p);
	assert_int_equal(bytes, 17 * MiB); /* four times, and the one that passes it */
	assert_int_equal(rig_counter(r, DC_CTR_REFUSED), 1);
	assert_int_equal(rig_stats(r).parked, 17);
	dc_unreserve(r->exp, pages);
	assert_true(nr_run > 0);
	while (nr_run < 17)
		dc_unreserve(r->exp, 256);
	for (unsigned int i = nr_run - 8; i < nr_run; i++)
		dc_unreserve(r->exp, 256);
	finish();
}

static void test_drain_cancels(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	uint64_t pages = take_rest(r);
	struct parked *late;

	(void)state;
	for (int i = 0; i < 10; i++)
		dc_park(r->exp, &parked_new(i % 3, i, 1 * MiB)->w);
	assert_int_equal(dc_export_drain(r->exp, 1 * SEC), 0);
	assert_int_equal(nr_run, 10);
	for (unsigned int i = 0; i < nr_run; i++)
		assert_int_equal(order[i]->status, -ECANCELED);
	assert_int_equal(rig_stats(r).parked, 0);
	assert_int_equal(rig_stats(r).parked_bytes, 0);
	assert_int_equal(rig_stats(r).reserved, pages * PAGE);
	late = parked_new(1, 99, 1 * MiB);
	assert_int_equal(dc_park(r->exp, &late->w), DC_REFUSED);
	assert_false(late->ran);
	free(late);
	dc_unreserve(r->exp, pages);
	finish();
}

static void set_limit(struct rig *r, uint64_t limit)
{
	r->params.dirty_bytes = limit;
	r->params.dirty_background_bytes = limit / 4;
	dc_export_set_params(r->exp, &r->params);
}

static void test_limit_live(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct dc_params got;
	uint64_t pages;

	(void)state;
	pages = take_rest(r);
	dc_park(r->exp, &parked_new(1, 0, 1 * MiB)->w);
	assert_int_equal(nr_run, 0);
	set_limit(r, 16 * MiB); /* up: at once */
	assert_int_equal(nr_run, 1);
	pages += 256;
	pages += take_rest(r);
	assert_int_equal(pages, 16 * MiB / PAGE);
	set_limit(r, 4 * MiB); /* down: nothing is lost, nothing more comes in */
	assert_int_equal(rig_stats(r).reserved, 16 * MiB);
	assert_false(dc_admit(r->exp, 1));
	dc_unreserve(r->exp, pages - 4 * MiB / PAGE);
	pages = 4 * MiB / PAGE;
	assert_false(dc_admit(r->exp, 1));
	dc_unreserve(r->exp, 1);
	assert_true(dc_admit(r->exp, 1));
	dc_export_get_params(r->exp, &got);
	assert_int_equal(got.dirty_bytes, 4 * MiB);
	dc_unreserve(r->exp, pages);
	finish();
}

/* A smaller limit admits nothing until enough is written back: not even what slots keep ready. */
static void test_lower_limit_takes_the_stash(void **state)
{
	struct rig *r = setup(256 * MiB, 64 * MiB);
	uint64_t stash = 0;

	(void)state;
	assert_true(dc_admit(r->exp, 20 * MiB / PAGE));
	for (unsigned int i = 0; i < r->exp->nr_slots; i++)
		stash += atomic_load(&r->exp->slots[i].stash);
	assert_true(stash > 0); /* or this tests nothing */
	set_limit(r, 8 * MiB);
	assert_false(dc_admit(r->exp, 1));
	dc_unreserve(r->exp, 1); /* nor what comes back */
	assert_false(dc_admit(r->exp, 1));
	rig_check_sum(r, 20 * MiB / PAGE - 1);
	dc_unreserve(r->exp, 20 * MiB / PAGE - 1);
	finish();
}

static void test_smaller_limit_with_waiters(void **state)
{
	struct rig *r = setup(16 * MiB, 4 * MiB);
	uint64_t pages = take_rest(r);

	(void)state;
	dc_park(r->exp, &parked_new(1, 0, 1 * MiB)->w);
	set_limit(r, 8 * MiB);
	dc_unreserve(r->exp, 8 * MiB / PAGE);
	assert_int_equal(nr_run, 0);
	dc_unreserve(r->exp, 255);
	assert_int_equal(nr_run, 0);
	dc_unreserve(r->exp, 1);
	assert_int_equal(nr_run, 1);
	assert_true(atomic_load(&r->exp->used) <= 8 * MiB / PAGE);
	dc_unreserve(r->exp, pages - 8 * MiB / PAGE);
	finish();
}

/* What the flusher frees lets the parked in; without threads, within a few rounds. */
static void test_flusher_lets_parked_in(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	for (int i = 0; i < 6; i++)
		dc_park(r->exp, &parked_new(1, i, 1 * MiB)->w);
	rig_settle(r);
	assert_int_equal(nr_run, 6);
	assert_true(rig_counter(r, DC_CTR_CLEANED_LIMIT) > 0);
	rig_check_sum(r, 6 * 256);
	dc_unreserve(r->exp, 6 * 256);
	dc_file_put(file);
	finish();
}

/* What was admitted before a write was parked, and becomes dirty only after the flusher has gone to
 * rest, stands in the parked one's way: it must be flushed now, not at some tick. */
static void test_late_record_is_flushed_for_the_parked(void **state)
{
	struct rig *r = setup(8 * MiB, 6 * MiB);
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_settle(r);
	assert_true(dc_admit(r->exp, 255));
	rig_begin(r, file);
	dc_pool_limit(r->exp, 256); /* small enough for two writes to be in each other's way */
	dc_sweep(r->exp);
	dc_park(r->exp, &parked_new(1, 0, 1 * MiB)->w);
	rig_settle(r); /* the flusher finds nothing dirty */
	assert_int_equal(nr_run, 0);
	dc_write_done(file, 0, 255 * PAGE, 255, 1, dc_file_errors(file), false);
	rig_settle(r);
	assert_int_equal(nr_run, 1);
	dc_unreserve(r->exp, 256);
	dc_file_put(file);
	finish();
}

static void test_truncate_lets_parked_in(void **state)
{
	struct rig *r = setup(8 * MiB, 2 * MiB);
	struct dc_file *file = rig_file(r, 1);

	(void)state;
	rig_write(r, file, 0, 8 * MiB, 1);
	dc_park(r->exp, &parked_new(1, 0, 1 * MiB)->w);
	dc_file_truncated(file, 7 * MiB + 1, dc_file_seq(file)); /* frees 255 pages: not enough */
	assert_int_equal(nr_run, 0);
	dc_file_truncated(file, 7 * MiB, dc_file_seq(file));
	assert_int_equal(nr_run, 1);
	dc_unreserve(r->exp, 256);
	dc_file_put(file);
	finish();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact_to_the_page),
		cmocka_unit_test(test_random_sizes_never_over),
		cmocka_unit_test(test_short_and_failed_writes),
		cmocka_unit_test(test_park_runs_on_release),
		cmocka_unit_test(test_park_with_room_is_admitted),
		cmocka_unit_test(test_small_do_not_starve_large),
		cmocka_unit_test(test_fair_between_clients),
		cmocka_unit_test(test_fair_in_bytes),
		cmocka_unit_test(test_many_clients_in_turn),
		cmocka_unit_test(test_hold_and_resume),
		cmocka_unit_test(test_hold_of_many),
		cmocka_unit_test(test_every_hold_is_resumed),
		cmocka_unit_test(test_refused_far_over_the_cap),
		cmocka_unit_test(test_drain_cancels),
		cmocka_unit_test(test_limit_live),
		cmocka_unit_test(test_lower_limit_takes_the_stash),
		cmocka_unit_test(test_smaller_limit_with_waiters),
		cmocka_unit_test(test_flusher_lets_parked_in),
		cmocka_unit_test(test_late_record_is_flushed_for_the_parked),
		cmocka_unit_test(test_truncate_lets_parked_in),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
