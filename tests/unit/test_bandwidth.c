/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The bandwidth estimate: it converges, follows, never counts idle time; its sizes are bounded. */
#include "rig.h"

/* A device of `rate` bytes/s that is fed turns of `turn` bytes back to back for `ns`. */
static uint64_t feed(struct dc_bandwidth *bw, uint64_t now, uint64_t ns, uint64_t rate,
		     uint64_t turn)
{
	uint64_t end = now + ns;

	dc_bw_busy(bw, now);
	while (now < end) {
		now += turn * 1000000 / rate * 1000;
		dc_bw_completed(bw, now, turn, now < end);
	}
	return now;
}

static void assert_near(uint64_t got, uint64_t want, unsigned int percent)
{
	assert_in_range(got, want - want * percent / 100, want + want * percent / 100);
}

static void test_unknown(void **state)
{
	struct dc_bandwidth bw = { 0 };

	(void)state;
	assert_int_equal(dc_bw_window(&bw, 100), 8 * MiB);
	assert_int_equal(dc_bw_chunk(&bw), 4 * MiB);
	/* One very short sample says nothing yet; the first of 10 ms is believed. */
	dc_bw_busy(&bw, 1 * SEC);
	dc_bw_completed(&bw, 1 * SEC + 5 * MSEC, 1 * MiB, 1);
	assert_int_equal(bw.bytes_per_s, 0);
	dc_bw_completed(&bw, 1 * SEC + 10 * MSEC, 1 * MiB, 1);
	assert_near(bw.bytes_per_s, 200 * MiB, 1);
	/* Later ones are as long as 100 ms. */
	dc_bw_completed(&bw, 1 * SEC + 60 * MSEC, 100 * MiB, 1);
	assert_near(bw.bytes_per_s, 200 * MiB, 1);
	dc_bw_completed(&bw, 1 * SEC + 110 * MSEC, 100 * MiB, 0);
	assert_true(bw.bytes_per_s > 300 * MiB);
}

static void test_converges(void **state)
{
	static const uint64_t rates[] = { 1 * MiB, 20 * MiB, 500 * MiB, 12 * GiB };

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct dc_bandwidth bw = { 0 };
		uint64_t now = feed(&bw, 5 * SEC, 10 * SEC, rates[i], 4 * MiB);

		assert_near(bw.bytes_per_s, rates[i], 2);
		/* Ten times slower, then: within 1% after seven periods, and never below. */
		now = feed(&bw, now, 10 * SEC, rates[i] / 10, 4 * MiB);
		assert_near(bw.bytes_per_s, rates[i] / 10, 2);
		assert_true(bw.bytes_per_s >= rates[i] / 10 - rates[i] / 1000);
		feed(&bw, now, 10 * SEC, rates[i], 4 * MiB);
		assert_near(bw.bytes_per_s, rates[i], 2);
	}
}

static void test_smooth(void **state)
{
	struct dc_bandwidth bw = { 0 };
	uint64_t now = feed(&bw, 1 * SEC, 5 * SEC, 100 * MiB, 4 * MiB);
	uint64_t before = bw.bytes_per_s;

	(void)state;
	/* A tenth of a second at a tenth of the speed moves the estimate by about a tenth. */
	feed(&bw, now, 101 * MSEC, 10 * MiB, 512 * KiB);
	assert_true(bw.bytes_per_s < before);
	assert_true(bw.bytes_per_s > before * 80 / 100);
}

static void test_idle_is_not_counted(void **state)
{
	struct dc_bandwidth bw = { 0 };
	uint64_t now = 1 * SEC;

	(void)state;
	/* 10 ms of work, then a minute of nothing; a hundred times. */
	for (int i = 0; i < 100; i++) {
		dc_bw_busy(&bw, now);
		now += 10 * MSEC;
		dc_bw_completed(&bw, now, 1 * MiB, 0);
		now += 60 * SEC;
	}
	assert_near(bw.bytes_per_s, 100 * MiB, 2);
}

static void test_overlapping(void **state)
{
	struct dc_bandwidth bw = { 0 };
	uint64_t now = 1 * SEC;

	(void)state;
	/* Four in flight always: each takes 40 ms, one completes every 10. */
	dc_bw_busy(&bw, now);
	for (int i = 0; i < 500; i++) {
		now += 10 * MSEC;
		dc_bw_completed(&bw, now, 1 * MiB, 1);
		dc_bw_busy(&bw, now); /* the next is submitted; says nothing new */
	}
	assert_near(bw.bytes_per_s, 100 * MiB, 2);
}

static void test_clock_that_stands(void **state)
{
	struct dc_bandwidth bw = { 0 };

	(void)state;
	for (int i = 0; i < 100; i++) {
		dc_bw_busy(&bw, 1 * SEC);
		dc_bw_completed(&bw, 1 * SEC, 1 * MiB, i % 2);
	}
	assert_int_equal(bw.bytes_per_s, 0); /* and no division by zero */
}

static void test_clamps(void **state)
{
	struct dc_bandwidth bw = { 0 };

	(void)state;
	bw.bytes_per_s = 1;
	assert_int_equal(dc_bw_window(&bw, 10), 8 * MiB);
	assert_int_equal(dc_bw_chunk(&bw), 4 * MiB);
	bw.bytes_per_s = 1000 * MiB;
	assert_near(dc_bw_window(&bw, 100), 100 * MiB, 1);
	assert_near(dc_bw_window(&bw, 1000), 1000 * MiB, 1);
	assert_int_equal(dc_bw_chunk(&bw), 10 * MiB);
	bw.bytes_per_s = 100 * GiB;
	assert_int_equal(dc_bw_chunk(&bw), 32 * MiB);
	assert_near(dc_bw_window(&bw, 10000), 1000 * GiB, 1);
	for (uint64_t rate = 1; rate < 100 * GiB; rate = rate * 3 + 1) {
		bw.bytes_per_s = rate;
		assert_int_equal(dc_bw_chunk(&bw) % (2 * MiB), 0);
		assert_in_range(dc_bw_chunk(&bw), 4 * MiB, 32 * MiB);
		assert_true(dc_bw_window(&bw, 100) >= 8 * MiB);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_unknown),	    cmocka_unit_test(test_converges),
		cmocka_unit_test(test_smooth),	    cmocka_unit_test(test_idle_is_not_counted),
		cmocka_unit_test(test_overlapping), cmocka_unit_test(test_clock_that_stands),
		cmocka_unit_test(test_clamps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
