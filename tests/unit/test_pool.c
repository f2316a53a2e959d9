/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The server's budget: division by weights, grants that never exceed it, lending and taking back. */
#include "rig.h"

#include <math.h>
#include <stdlib.h>

static void test_share_by_weight(void **state)
{
	struct dc_share s[3] = { { .weight = 1, .max = 1e9 },
				 { .weight = 2, .max = 1e9 },
				 { .weight = 3, .max = 1e9 } };

	(void)state;
	assert_true(dc_share_out(s, 3, 600) < 1e-6);
	assert_true(fabs(s[0].out - 100) < 1e-6 && fabs(s[1].out - 200) < 1e-6 &&
		    fabs(s[2].out - 300) < 1e-6);
}

static void test_share_min_and_max(void **state)
{
	struct dc_share s[3] = { { .weight = 1, .min = 400, .max = 500 },
				 { .weight = 1, .max = 50 },
				 { .weight = 1, .max = 1000 } };

	(void)state;
	/* 600 beyond the min: 50 for the second; of 550 the first takes 100, the third the rest. */
	assert_true(dc_share_out(s, 3, 1000) < 1e-6);
	assert_true(fabs(s[0].out - 500) < 1e-6);
	assert_true(fabs(s[1].out - 50) < 1e-6);
	assert_true(fabs(s[2].out - 450) < 1e-6);
	/* More than everybody may have is left over; a new max takes of it. */
	assert_true(fabs(dc_share_out(s, 3, 2000) - 450) < 1e-6);
	s[1].max = 100;
	assert_true(fabs(dc_share_more(s, 3, 450) - 400) < 1e-6);
	/* Too little for the mins: each its part of them. */
	s[1].min = 100;
	dc_share_out(s, 3, 250);
	assert_true(fabs(s[0].out - 200) < 1e-6 && fabs(s[1].out - 50) < 1e-6 && s[2].out == 0);
}

static void test_share_random(void **state)
{
	struct dc_share s[50];

	(void)state;
	srand(3);
	for (int round = 0; round < 2000; round++) {
		double total = rand() % 10000, sum = 0, left;
		size_t n = 1 + (size_t)rand() % 50;

		for (size_t i = 0; i < n; i++) {
			s[i].weight = rand() % 10;
			s[i].min = rand() % 4 ? 0 : rand() % 200;
			s[i].max = s[i].min + rand() % 1000;
		}
		left = dc_share_out(s, n, total);
		for (size_t i = 0; i < n; i++) {
			sum += s[i].out;
			assert_true(s[i].out >= 0 && s[i].out <= s[i].max + 1e-6);
		}
		assert_true(fabs(sum + left - total) < 1e-3 || (left == 0 && sum <= total + 1e-3));
	}
}

/* ---- grants ---- */

#define NR 4

static struct dc_export *exports[NR];

static struct rig *setup(uint64_t total, uint64_t limit)
{
	struct rig *r = rig_new(&(struct rig_options){
		.limit = limit, .background = limit / 4, .dirty_bytes = total });

	exports[0] = r->exp;
	for (uint32_t i = 1; i < NR; i++)
		exports[i] = dc_export_new(r->dev, 100 + i, "/more", &r->params);
	return r;
}

static void finish(struct rig *r)
{
	for (int i = 1; i < NR; i++) {
		assert_int_equal(dc_export_drain(exports[i], SEC), 0);
		assert_true(dc_export_free(exports[i], SEC));
	}
	rig_free(r);
}

static uint64_t granted(struct rig *r)
{
	struct dc_pool_stats st;

	dc_pool_stats(r->eng, &st);
	return st.granted;
}

static uint64_t use(int i)
{
	struct dc_export *e = exports[i];

	return (atomic_load(&e->used) - atomic_load(&e->withheld)) << DC_PAGE_SHIFT;
}

static uint64_t take_all(int i, uint64_t pages)
{
	uint64_t n = 0;

	while (dc_admit(exports[i], pages))
		n += pages;
	return n;
}

static void pass(struct rig *r, unsigned int tenths)
{
	while (tenths--)
		rig_pass(r, 100 * MSEC);
}

static void test_enough_for_all(void **state)
{
	struct rig *r = setup(256 * MiB, 64 * MiB);

	(void)state;
	pass(r, 5);
	for (int i = 0; i < NR; i++) {
		assert_int_equal(atomic_load(&exports[i]->withheld), 0);
		assert_int_equal(take_all(i, 16), 64 * MiB / PAGE);
	}
	for (int i = 0; i < NR; i++)
		dc_unreserve(exports[i], 64 * MiB / PAGE);
	finish(r);
}

/* Whatever exports do, their sum stays within the server's budget: at every step. */
static void test_never_over(void **state)
{
	struct rig *r = setup(100 * MiB, 64 * MiB);
	uint64_t held[NR] = { 0 };

	(void)state;
	srand(5);
	for (int step = 0; step < 60000; step++) {
		int i = rand() % NR;
		uint64_t sum = 0, pages = 1 + (uint64_t)rand() % 300;

		if (rand() % 3 && dc_admit(exports[i], pages)) {
			held[i] += pages;
		} else if (held[i] > 0) {
			pages = dc_min_u64(held[i], 1 + (uint64_t)rand() % 2000);
			dc_unreserve(exports[i], pages);
			held[i] -= pages;
		}
		if (step % 7 == 0)
			rig_pass(r, (uint64_t)rand() % 50 * MSEC);
		for (int k = 0; k < NR; k++)
			sum += use(k);
		assert_true(sum <= 100 * MiB);
		assert_true(granted(r) <= 100 * MiB);
	}
	for (int k = 0; k < NR; k++)
		dc_unreserve(exports[k], held[k]);
	finish(r);
}

/* One alone may have nearly everything; when others come each gets its part as the first one's pages are
 * written. */
static void test_lent_and_taken_back(void **state)
{
	struct rig *r = setup(100 * MiB, 96 * MiB);
	uint64_t held[NR] = { 0 };

	(void)state;
	for (int t = 0; t < 20; t++) {
		held[0] += take_all(0, 16);
		pass(r, 1);
	}
	assert_true(held[0] * PAGE >= 80 * MiB);
	/* The second one comes: at once it gets something, soon its half. */
	held[1] += take_all(1, 16);
	assert_true(held[1] > 0);
	for (int t = 0; t < 60; t++) {
		/* Both have their pages written all the time and want all they can get. */
		for (int i = 0; i < 2; i++) {
			uint64_t n = held[i] / 4;

			dc_unreserve(exports[i], n);
			held[i] = held[i] - n + take_all(i, 16);
		}
		pass(r, 1);
	}
	assert_in_range(held[0] * PAGE, 40 * MiB, 60 * MiB);
	assert_in_range(held[1] * PAGE, 40 * MiB, 60 * MiB);
	for (int i = 0; i < 2; i++)
		dc_unreserve(exports[i], held[i]);
	finish(r);
}

static void test_min_bytes_is_kept(void **state)
{
	struct rig *r = setup(100 * MiB, 96 * MiB);
	uint64_t held = 0;

	(void)state;
	r->params.min_bytes = 40 * MiB;
	dc_export_set_params(exports[3], &r->params);
	r->params.min_bytes = 0;
	pass(r, 20);
	for (int t = 0; t < 20; t++) {
		held += take_all(0, 16);
		pass(r, 1);
	}
	assert_true(held * PAGE <= 60 * MiB && held * PAGE >= 40 * MiB);
	/* All of it, at once. */
	{
		uint64_t n = take_all(3, 16);

		assert_true(n * PAGE >= 40 * MiB);
		dc_unreserve(exports[3], n);
	}
	dc_unreserve(exports[0], held);
	finish(r);
}

static void test_strict_does_not_borrow(void **state)
{
	struct rig *r = setup(100 * MiB, 96 * MiB);
	uint64_t held = 0;

	(void)state;
	r->params.strict_limit = 1;
	dc_export_set_params(exports[0], &r->params);
	r->params.strict_limit = 0;
	pass(r, 60);
	for (int t = 0; t < 20; t++) {
		held += take_all(0, 16);
		pass(r, 1);
	}
	/* A quarter of the server's; what it got before it was told is 4 MiB at most. */
	assert_in_range(held * PAGE, 15 * MiB, 26 * MiB);
	dc_unreserve(exports[0], held);
	finish(r);
}

/* A limit that is lowered while more than that is used: what is beyond it counts until it is written. */
static void test_lower_limit_is_no_gift(void **state)
{
	struct rig *r = setup(100 * MiB, 96 * MiB);
	uint64_t held[2];

	(void)state;
	held[0] = 0;
	for (int t = 0; t < 30; t++) {
		held[0] += take_all(0, 16);
		pass(r, 1);
	}
	assert_true(held[0] * PAGE >= 80 * MiB);
	r->params.dirty_bytes = 8 * MiB;
	r->params.dirty_background_bytes = 2 * MiB;
	dc_export_set_params(exports[0], &r->params);
	held[1] = take_all(1, 16);
	for (int t = 0; t < 20; t++) {
		pass(r, 1);
		held[1] += take_all(1, 16);
		assert_true((held[0] + held[1]) * PAGE <= 100 * MiB);
		assert_true(granted(r) <= 100 * MiB);
	}
	/* Written at last: then it is the other's. */
	dc_unreserve(exports[0], held[0]);
	for (int t = 0; t < 40; t++) {
		pass(r, 1);
		held[1] += take_all(1, 16);
	}
	assert_true(held[1] * PAGE >= 80 * MiB);
	dc_unreserve(exports[1], held[1]);
	finish(r);
}

/* A lower total: what nobody uses is not handed out any more, from that moment. */
static void test_lower_total_holds_at_once(void **state)
{
	struct rig *r = setup(400 * MiB, 96 * MiB);
	uint64_t held[NR], sum = 0;

	(void)state;
	pass(r, 5);
	dc_engine_set_dirty_bytes(r->eng, 64 * MiB);
	for (int i = 0; i < NR; i++)
		sum += held[i] = take_all(i, 16);
	assert_true(sum * PAGE <= 64 * MiB);
	for (int i = 0; i < NR; i++)
		dc_unreserve(exports[i], held[i]);
	finish(r);
}

/* Strict_Limit holds although the limits of all fit into the total. */
static void test_strict_without_need(void **state)
{
	struct rig *r = setup(400 * MiB, 96 * MiB);
	uint64_t n, held;

	(void)state;
	r->params.strict_limit = 1;
	r->params.weight = 10;
	dc_export_set_params(exports[0], &r->params);
	pass(r, 50);
	n = take_all(0, 16);
	/* 10 of 310 parts of 400 MiB */
	assert_in_range(n * PAGE, 8 * MiB, 14 * MiB);
	held = take_all(1, 16);
	assert_int_equal(held * PAGE, 96 * MiB);
	dc_unreserve(exports[1], held);
	dc_unreserve(exports[0], n);
	finish(r);
}

/* A new total, down and up, under load. */
static void test_total_changes(void **state)
{
	struct rig *r = setup(200 * MiB, 96 * MiB);
	uint64_t held[2] = { 0 };

	(void)state;
	for (int t = 0; t < 20; t++) {
		held[0] += take_all(0, 16);
		held[1] += take_all(1, 16);
		pass(r, 1);
	}
	assert_true((held[0] + held[1]) * PAGE >= 150 * MiB);
	dc_engine_set_dirty_bytes(r->eng, 50 * MiB);
	for (int t = 0; t < 60; t++) {
		for (int i = 0; i < 2; i++) {
			uint64_t n = held[i] / 4;

			dc_unreserve(exports[i], n);
			held[i] = held[i] - n + take_all(i, 16);
		}
		pass(r, 1);
	}
	assert_true((held[0] + held[1]) * PAGE <= 50 * MiB);
	dc_engine_set_dirty_bytes(r->eng, 0);
	pass(r, 2);
	held[0] += take_all(0, 1);
	assert_int_equal(held[0] * PAGE, 96 * MiB);
	for (int i = 0; i < 2; i++)
		dc_unreserve(exports[i], held[i]);
	finish(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_share_by_weight),
		cmocka_unit_test(test_share_min_and_max),
		cmocka_unit_test(test_share_random),
		cmocka_unit_test(test_enough_for_all),
		cmocka_unit_test(test_never_over),
		cmocka_unit_test(test_lent_and_taken_back),
		cmocka_unit_test(test_min_bytes_is_kept),
		cmocka_unit_test(test_strict_does_not_borrow),
		cmocka_unit_test(test_lower_limit_is_no_gift),
		cmocka_unit_test(test_lower_total_holds_at_once),
		cmocka_unit_test(test_strict_without_need),
		cmocka_unit_test(test_total_changes),
	};

	return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
