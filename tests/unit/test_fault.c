/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Fault injection: rules mean what fault.h says, wrong ones are refused, and a device obeys them. */
#include "rig.h"

#include <errno.h>
#include <string.h>

static uint64_t now;

static uint64_t clock_now(void *host)
{
	(void)host;
	return now;
}

static int hits(struct dc_fault *f, enum dc_fault_op op, uint64_t offset, uint64_t len, int times)
{
	struct dc_fault_hit hit;
	int n = 0;

	while (times--)
		n += dc_fault_decide(f, op, offset, len, &hit);
	return n;
}

static void test_rules(void **state)
{
	struct dc_fault *f = dc_fault_new(clock_now, NULL);
	struct dc_fault_hit hit;
	char msg[DC_FAULT_MSG];

	(void)state;
	now = 1000;
	assert_int_equal(hits(f, DC_FAULT_SYNC, 0, 0, 5), 0);
	assert_true(dc_fault_set(f, "sync:EIO:count=2,after=1", msg));
	assert_int_equal(hits(f, DC_FAULT_WRITEBACK, 0, 0, 5), 0);
	assert_false(dc_fault_decide(f, DC_FAULT_SYNC, 0, 0, &hit));
	assert_true(dc_fault_decide(f, DC_FAULT_SYNC, 0, 0, &hit));
	assert_int_equal(hit.err, -EIO);
	assert_int_equal(hits(f, DC_FAULT_SYNC, 0, 0, 5), 1);

	assert_true(dc_fault_set(f, "writeback|sync:ENOSPC:range=1M-2M", msg));
	assert_int_equal(hits(f, DC_FAULT_SYNC, 0, 1 << 20, 1), 0);
	assert_int_equal(hits(f, DC_FAULT_SYNC, 0, (1 << 20) + 1, 1), 1);
	assert_int_equal(hits(f, DC_FAULT_WRITEBACK, (2 << 20) - 1, 1, 1), 1);
	assert_int_equal(hits(f, DC_FAULT_WRITEBACK, 2 << 20, 4096, 1), 0);
	assert_int_equal(hits(f, DC_FAULT_SYNC, 0, 0, 1), 1); /* the whole file */
	assert_int_equal(hits(f, DC_FAULT_SYNC, 3 << 20, 0, 1), 0);

	/* At random, and the same at random. */
	assert_true(dc_fault_set(f, "any:EIO:p=0.25,seed=7", msg));
	{
		int first = hits(f, DC_FAULT_WRITE, 0, 1, 4000);

		assert_in_range(first, 900, 1100);
		assert_true(dc_fault_set(f, "any:EIO:p=0.25,seed=7", msg));
		assert_int_equal(hits(f, DC_FAULT_WRITE, 0, 1, 4000), first);
		assert_int_equal(hits(f, DC_FAULT_DROP, 0, 1, 1000), 0);
	}
	assert_true(dc_fault_set(f, "write:short=4K; sync:delay=30 ; writeback:hang:for=1", msg));
	assert_true(dc_fault_decide(f, DC_FAULT_WRITE, 0, 9999, &hit));
	assert_int_equal(hit.len, 4096);
	assert_int_equal(hit.err, 0);
	assert_true(dc_fault_decide(f, DC_FAULT_SYNC, 0, 0, &hit));
	assert_int_equal(hit.delay_ns, 30 * MSEC);
	assert_true(dc_fault_decide(f, DC_FAULT_WRITEBACK, 0, 0, &hit));
	assert_true(hit.delay_ns == UINT64_MAX);
	now += 2 * MSEC;
	assert_false(dc_fault_decide(f, DC_FAULT_WRITEBACK, 0, 0, &hit));
	assert_true(dc_fault_set(f, "off", msg));
	assert_int_equal(hits(f, DC_FAULT_WRITE, 0, 1, 10), 0);
	dc_fault_free(f);
}

static void test_wrong_rules(void **state)
{
	static const char *const wrong[] = {
		"EIO",
		"sync",
		"sync:",
		"sync:EWHAT",
		"fsync:EIO",
		"sync:EIO:count=0",
		"sync:EIO:count=x",
		"sync:EIO:p=1.5",
		"sync:EIO:range=5",
		"sync:EIO:range=5-5",
		"sync:short=5",
		"sync:EIO:often",
		"sync:delay=-1",
		"sync:delay=",
		"sync:EIO:range=1-99999999999T",
	};
	struct dc_fault *f = dc_fault_new(clock_now, NULL);
	char msg[DC_FAULT_MSG], longer[600];

	(void)state;
	assert_true(dc_fault_set(f, "sync:EIO", msg));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		msg[0] = '\0';
		if (dc_fault_set(f, wrong[i], msg))
			fail_msg("taken: %s", wrong[i]);
		assert_non_null(strstr(msg, wrong[i]));
	}
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	assert_false(dc_fault_set(f, longer, msg));
	/* The former rules stay. */
	assert_int_equal(hits(f, DC_FAULT_SYNC, 0, 0, 3), 3);
	dc_fault_free(f);
}

static void test_device_obeys(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 4 * MiB, .faulty = true });
	struct dc_file *file = rig_file(r, 1);
	char msg[DC_FAULT_MSG];
	uint64_t len = 5000;

	(void)state;
	assert_true(dc_device_fault(r->dev, "writeback:EIO:count=1", msg));
	rig_write(r, file, 0, 8 * MiB, 1);
	rig_poll(r, 4);
	assert_int_equal(rig_commit(r, file, 1), -EIO);
	assert_int_equal(rig_commit(r, file, 1), 0);
	/* The operation was done all the same. */
	assert_true(r->fake->submitted[DC_OP_WRITEBACK] > 0);
	assert_true(dc_device_fault(r->dev, "sync:EDQUOT:count=1", msg));
	rig_write(r, file, 0, PAGE, 1);
	assert_int_equal(rig_commit(r, file, 1), -EDQUOT);
	assert_true(dc_device_fault(r->dev, "write:short=100", msg));
	assert_int_equal(dc_write_fault(r->exp, 0, &len), 0);
	assert_int_equal(len, 100);
	assert_true(dc_device_fault(r->dev, "write:ENOSPC", msg));
	assert_int_equal(dc_write_fault(r->exp, 0, &len), -ENOSPC);
	dc_file_put(file);
	rig_free(r);
}

static void test_hanging_device(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .background = 4 * MiB, .faulty = true });
	struct dc_file *file = rig_file(r, 1);
	char msg[DC_FAULT_MSG];

	(void)state;
	assert_true(dc_device_fault(r->dev, "writeback:hang", msg));
	rig_write(r, file, 0, 8 * MiB, 1);
	rig_poll(r, 20);
	assert_true(rig_stats(r).writeback > 0);
	assert_int_equal(r->fake->submitted[DC_OP_WRITEBACK], 0);
	assert_true(dc_device_fault(r->dev, "off", msg));
	rig_poll(r, 4);
	assert_int_equal(rig_stats(r).writeback, 0);
	assert_true(r->fake->submitted[DC_OP_WRITEBACK] > 0);
	dc_file_put(file);
	rig_free(r);
}

static void test_only_where_asked_for(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	char msg[DC_FAULT_MSG];
	int err;

	(void)state;
	assert_false(dc_device_fault(r->dev, "sync:EIO", msg));
	assert_null(dc_device_get_faulty(r->eng, 1, fake_make, &err));
	assert_int_equal(err, -EBUSY);
	rig_free(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_wrong_rules),
		cmocka_unit_test(test_device_obeys),
		cmocka_unit_test(test_hanging_device),
		cmocka_unit_test(test_only_where_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
