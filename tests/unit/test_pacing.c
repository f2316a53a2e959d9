/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Pacing: levels, the law, the measured rate, and admission by credit. */
#include "rig.h"

#include <math.h>
#include <stdlib.h>

static void assert_close(double got, double want, double part)
{
	if (fabs(got - want) > fabs(want) * part)
		fail_msg("%g is not near %g", got, want);
}

static void test_levels(void **state)
{
	(void)state;
	assert_int_equal(dc_pace_freerun(250, 1000), 812);
	assert_int_equal(dc_pace_setpoint(250, 1000), 906);
	assert_int_equal(dc_pace_setpoint(0, 4), 3);
}

static void test_law(void **state)
{
	struct dc_pace_in in = { .freerun = 625, .setpoint = 812, .limit = 1000, .completed = 400 };

	(void)state;
	/* At the set point: what the device does. */
	in.dirty = 812;
	assert_close(dc_pace_linear(&in), 400, 1e-9);
	/* Falls all the way, never below an eighth, and is nothing at the limit. */
	for (double last = 1e9; in.dirty < 1000; in.dirty++) {
		double rate = dc_pace_linear(&in);

		assert_true(rate <= last && rate >= 50);
		last = rate;
	}
	assert_close(dc_pace_linear(&in) + 1, 1, 1e-9);
	/* Before anything was measured writes flow, too. */
	in.completed = 0;
	in.dirty = 625;
	assert_true(dc_pace_linear(&in) > 0);
}

/* The distance to the set point shrinks as the formula says, from either side, at any speed. */
static void test_law_converges(void **state)
{
	(void)state;
	for (double device = 10; device < 1e6; device *= 10) {
		for (double dirty = 640; dirty < 1000; dirty += 340) {
			struct dc_pace_in in = { .dirty = dirty,
						 .freerun = 625,
						 .setpoint = 812,
						 .limit = 1000,
						 .completed = device };

			for (int ms = 0; ms < 1500; ms++)
				in.dirty += (dc_pace_linear(&in) - device) / 1000;
			/* Slower than 50 pages a second it cannot drain faster. */
			if (device > 1000 || dirty < 812)
				assert_close(in.dirty, 812, 0.01);
		}
	}
}

static void test_rate_of_even_completions(void **state)
{
	struct dc_rate r = { 0 };
	uint64_t now = 1 * SEC;

	(void)state;
	dc_rate_begin(&r, now);
	for (int i = 0; i < 100; i++) {
		now += 80 * MSEC;
		dc_rate_add(&r, now, 1024);
		/* No ripple, however coarse they are. */
		assert_close(r.per_s, 12800, 1e-6);
		assert_close(dc_rate_now(&r, now + 79 * MSEC), 12800, 1e-6);
	}
	/* Several at once count as one. */
	for (int i = 0; i < 20; i++) {
		now += 80 * MSEC;
		for (int k = 0; k < 4; k++)
			dc_rate_add(&r, now, 256);
	}
	assert_close(r.per_s, 12800, 0.26);
}

static void test_rate_follows(void **state)
{
	struct dc_rate r = { 0 };
	uint64_t now = 1 * SEC;

	(void)state;
	dc_rate_begin(&r, now);
	for (int i = 0; i < 100; i++)
		dc_rate_add(&r, now += 10 * MSEC, 1000);
	/* Nothing comes any more. */
	assert_close(dc_rate_now(&r, now + 3 * SEC), 10000, 0.01);
	assert_true(dc_rate_now(&r, now + 30 * SEC) < 1100);
	/* A tenth, within a second. */
	for (int i = 0; i < 100; i++)
		dc_rate_add(&r, now += 10 * MSEC, 100);
	assert_close(r.per_s, 10000, 0.45);
	/* Idle time counts for nothing. */
	dc_rate_end(&r, now);
	now += 100 * SEC;
	dc_rate_begin(&r, now);
	for (int i = 0; i < 100; i++)
		dc_rate_add(&r, now += 10 * MSEC, 100);
	assert_close(r.per_s, 10000, 0.05);
}

/* Bursts with pauses between them: neither the pauses count, nor do the bursts pile up into one sample. */
static void test_rate_of_bursts(void **state)
{
	struct dc_rate r = { 0 };
	uint64_t now = 1 * SEC;

	(void)state;
	for (int i = 0; i < 200; i++) {
		dc_rate_begin(&r, now);
		now += 4 * MSEC;
		dc_rate_add(&r, now, 100); /* shorter than a sample */
		dc_rate_end(&r, now);
		now += 400 * MSEC;
	}
	assert_close(r.per_s, 25000, 0.01);
	assert_close(dc_rate_now(&r, now + 60 * SEC), 25000, 0.01);
}

/* ---- admission ---- */

struct parked {
	struct dc_waiter w;
	bool ran;
};

static unsigned int nr_ran;

static void note(struct dc_waiter *w, int status)
{
	(void)status;
	container_of_dc(w, struct parked, w)->ran = true;
	nr_ran++;
}

static struct parked *park(struct rig *r, uint64_t client, enum dc_parking want)
{
	struct parked *p = calloc(1, sizeof(*p));

	p->w.pages = 16;
	p->w.bytes = 16 * PAGE;
	p->w.client = client;
	p->w.connection = p;
	p->w.run = note;
	assert_int_equal(dc_park(r->exp, &p->w), want);
	return p;
}

/* A law that a test sets. */
static double rate_now;

static double constant(const struct dc_pace_in *in)
{
	(void)in;
	return rate_now;
}

/* Below freerun nobody is asked; above, each write costs credit, which comes with time and is not kept
 * for more than a moment; the limit holds whatever the law says. */
static void test_credit(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.limit = 16 * MiB, .background = 4 * MiB, .law = constant });
	uint64_t freerun = dc_pace_freerun(1024, 4096), have = 0, before;
	struct parked *p[3];

	(void)state;
	nr_ran = 0;
	rate_now = 1600; /* pages a second */
	while (atomic_load(&r->exp->used) < freerun - 16) {
		assert_true(dc_admit(r->exp, 16));
		have += 16;
	}
	atomic_fetch_add(&r->now, 10 * SEC); /* long idle: no more than a moment's credit */
	before = have;
	while (dc_admit(r->exp, 16))
		have += 16;
	/* What fits below freerun, 10 ms of credit, and the write that went below zero. */
	assert_in_range(have - before, 16, 64);
	for (int i = 0; i < 3; i++)
		p[i] = park(r, 1, DC_PARKED);
	rig_poll(r, 1);
	assert_int_equal(nr_ran, 0);
	/* Ten milliseconds are worth one write. */
	for (int i = 0; i < 400 && nr_ran < 3; i++)
		rig_pass(r, 1 * MSEC);
	assert_int_equal(nr_ran, 3);
	have += 48;
	/* At no rate at all nothing comes in, until what is dirty falls below freerun. */
	rate_now = 0;
	free(p[0]);
	p[0] = park(r, 9, DC_PARKED);
	for (int i = 0; i < 100; i++)
		rig_pass(r, 50 * MSEC);
	assert_int_equal(nr_ran, 3);
	dc_unreserve(r->exp, 256);
	have -= 256;
	for (int i = 0; i < 30; i++)
		rig_pass(r, 1 * MSEC);
	assert_int_equal(nr_ran, 4);
	have += 16;
	/* However much credit there is, the limit is the limit. */
	rate_now = 1e9;
	rig_pass(r, 100 * MSEC);
	while (dc_admit(r->exp, 16))
		have += 16;
	assert_int_equal(have, 4096);
	assert_int_equal(atomic_load(&r->exp->used), 4096);
	dc_unreserve(r->exp, have);
	for (int i = 0; i < 3; i++)
		free(p[i]);
	rig_free(r);
}

/* Nobody who waits for credit is forgotten when nothing completes and nobody kicks. */
static void test_timer_alone(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.limit = 16 * MiB, .background = 4 * MiB, .law = constant });
	uint64_t have = 0;
	struct parked *p;

	(void)state;
	nr_ran = 0;
	rate_now = 100;
	while (dc_admit(r->exp, 16))
		have += 16;
	p = park(r, 1, DC_PARKED);
	rig_poll(r, 1); /* parking woke it */
	assert_false(p->ran);
	for (int i = 0; i < 1000 && !p->ran; i++) {
		uint64_t wait = dc_device_timeout(r->dev, atomic_load(&r->now));

		assert_true(wait <= 20 * MSEC);
		atomic_fetch_add(&r->now, wait);
		dc_device_poll(r->dev, 0);
	}
	assert_true(p->ran);
	dc_unreserve(r->exp, have + 16);
	free(p);
	rig_free(r);
}

/* Writes that keep coming do not put off the one that waits. */
static void test_parking_does_not_put_off(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.limit = 16 * MiB, .background = 4 * MiB, .law = constant });
	struct parked *p[100];
	uint64_t have = 0;
	unsigned int n = 0;

	(void)state;
	nr_ran = 0;
	rate_now = 1600;
	while (dc_admit(r->exp, 16))
		have += 16;
	for (; n < 100 && nr_ran == 0; n++) {
		p[n] = park(r, 1, DC_PARKED);
		rig_pass(r, 900000);
	}
	assert_true(nr_ran > 0 && n < 40);
	for (int i = 0; i < 5000 && nr_ran < n; i++)
		rig_pass(r, 1 * MSEC);
	assert_int_equal(nr_ran, n);
	dc_unreserve(r->exp, have + 16 * n);
	for (unsigned int i = 0; i < n; i++)
		free(p[i]);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_levels),
		cmocka_unit_test(test_law),
		cmocka_unit_test(test_law_converges),
		cmocka_unit_test(test_rate_of_even_completions),
		cmocka_unit_test(test_rate_follows),
		cmocka_unit_test(test_rate_of_bursts),
		cmocka_unit_test(test_credit),
		cmocka_unit_test(test_parking_does_not_put_off),
		cmocka_unit_test(test_timer_alone),
	};

	return cmocka_run_group_tests_name("pacing", tests, NULL, NULL);
}
