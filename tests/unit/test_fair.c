/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The fair queue: order, shares in bytes, a past that counts, and that nothing of it stays behind. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

static struct dc_fair fair;
static struct dc_waiter pool[100000];
static unsigned int used;

static void push(uint64_t client, uint64_t bytes)
{
	struct dc_waiter *w = &pool[used++];

	assert_true(used < 100000);
	memset(w, 0, sizeof(*w));
	w->client = client;
	w->bytes = bytes;
	dc_fair_push(&fair, w);
}

static struct dc_waiter *pop(void)
{
	struct dc_waiter *first = dc_fair_first(&fair), *w = dc_fair_pop(&fair);

	assert_ptr_equal(first, w);
	return w;
}

static int setup(void **state)
{
	(void)state;
	used = 0;
	dc_fair_init(&fair);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	while (dc_fair_first(&fair))
		pop();
	dc_fair_free(&fair);
	return 0;
}

static void test_one_client_in_order(void **state)
{
	(void)state;
	assert_null(dc_fair_first(&fair));
	for (int i = 0; i < 100; i++)
		push(1, (uint64_t)(100 - i) * KiB);
	for (int i = 0; i < 100; i++)
		assert_ptr_equal(pop(), &pool[i]);
	assert_null(dc_fair_first(&fair));
}

/* Clients that came in the same instant are served in the order they came. */
static void test_ties_by_arrival(void **state)
{
	(void)state;
	for (uint64_t c = 0; c < 50; c++)
		push(49 - c, 4096);
	for (int i = 0; i < 50; i++)
		assert_ptr_equal(pop(), &pool[i]);
}

/* Shares in bytes stay within one write of each other at any moment, whatever the sizes. */
static void test_bytes_at_any_moment(void **state)
{
	static const uint64_t size[4] = { 4 * KiB, 64 * KiB, 256 * KiB, 1 * MiB };
	uint64_t got[4] = { 0 };

	(void)state;
	for (int c = 0; c < 4; c++)
		for (uint64_t n = 0; n < 32 * MiB / size[c]; n++)
			push((uint64_t)c, size[c]);
	for (uint64_t all = 0; all < 120 * MiB;) {
		struct dc_waiter *w = pop();

		got[w->client] += w->bytes;
		all += w->bytes;
		for (int a = 0; a < 4; a++)
			for (int b = 0; b < 4; b++)
				if (got[a] < 31 * MiB && got[b] < 31 * MiB)
					assert_true(got[a] + size[b] + size[a] >= got[b]);
	}
}

/* A client with two small writes on their way, sent anew each time one was let in, beside one with
 * a thousand large ones: as many bytes. Round robin would give it an eighth. */
static void test_an_empty_queue_is_remembered(void **state)
{
	uint64_t got[3] = { 0 };

	(void)state;
	for (int i = 0; i < 1000; i++)
		push(1, 1 * MiB);
	push(2, 64 * KiB);
	push(2, 64 * KiB);
	while (got[1] < 100 * MiB) {
		struct dc_waiter *w = pop();

		got[w->client] += w->bytes;
		if (w->client == 2)
			push(2, 64 * KiB);
	}
	assert_in_range(got[2], 98 * MiB, 102 * MiB);
	/* And the other way round: the greedy one's queue runs empty after each of its writes, and it has
	 * no advantage of that. */
	while (dc_fair_first(&fair))
		pop();
	memset(got, 0, sizeof(got));
	used = 0;
	for (int i = 0; i < 2000; i++)
		push(2, 64 * KiB);
	push(1, 1 * MiB);
	while (got[2] < 100 * MiB) {
		struct dc_waiter *w = pop();

		got[w->client] += w->bytes;
		if (w->client == 1)
			push(1, 1 * MiB);
	}
	assert_in_range(got[1], 98 * MiB, 102 * MiB);
}

/* A client that was away for long has no claim on the past. */
static void test_no_credit_for_absence(void **state)
{
	uint64_t got[3] = { 0 };

	(void)state;
	for (int i = 0; i < 600; i++)
		push(1, 1 * MiB);
	for (int i = 0; i < 500; i++)
		pop();
	for (int i = 0; i < 600; i++)
		push(2, 1 * MiB);
	for (int i = 0; i < 100; i++) {
		struct dc_waiter *w = pop();

		got[w->client] += w->bytes;
	}
	assert_in_range(got[1], 49 * MiB, 51 * MiB);
}

/* One that has nothing queued just when another's large write goes may catch up, and no further. */
static void test_lag_is_made_up_for(void **state)
{
	uint64_t small = 0;

	(void)state;
	for (int i = 0; i < 100; i++)
		push(1, 1 * MiB);
	push(2, 64 * KiB);
	for (int i = 0; i < 50; i++) {
		/* The small one's next comes only after the large one went. */
		while (dc_fair_first(&fair)->client == 2)
			small += pop()->bytes;
		assert_int_equal(pop()->client, 1);
		while (dc_fair_behind(&fair, 2)) {
			dc_fair_charge(&fair, 2, 64 * KiB);
			small += 64 * KiB;
		}
		assert_false(dc_fair_behind(&fair, 1));
	}
	assert_in_range(small, 48 * MiB, 52 * MiB);
}

static void test_ten_thousand_clients(void **state)
{
	uint32_t seen[10000] = { 0 };

	(void)state;
	for (uint64_t n = 0; n < 3; n++)
		for (uint64_t c = 0; c < 10000; c++)
			push(c * 0x10001, 64 * KiB);
	assert_int_equal(fair.nr, 10000);
	for (int i = 0; i < 30000; i++) {
		seen[pop()->client / 0x10001]++;
		if (i % 10000 == 9999)
			for (int c = 0; c < 10000; c++)
				assert_int_equal(seen[c], i / 10000 + 1);
	}
	/* Those that have gone are forgotten as virtual time passes them. */
	for (int i = 0; i < 12000; i++) {
		push(7, 64 * KiB);
		pop();
	}
	assert_true(fair.nr_flows <= 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_client_in_order, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ties_by_arrival, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bytes_at_any_moment, setup, teardown),
		cmocka_unit_test_setup_teardown(test_an_empty_queue_is_remembered, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_credit_for_absence, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lag_is_made_up_for, setup, teardown),
		cmocka_unit_test_setup_teardown(test_ten_thousand_clients, setup, teardown),
	};

	return cmocka_run_group_tests_name("fair", tests, NULL, NULL);
}
