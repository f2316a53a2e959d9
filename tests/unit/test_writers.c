/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Writers of one file: one is in at a time, the others leave their writes behind, none of those is
 * lost, and nobody serves for ever.
 */
#include "rig.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct left {
	struct dc_queued q;
	int nr;
	pthread_t by;
};

static int order[1000], nr_run;

static void note(struct dc_queued *q)
{
	struct left *l = container_of_dc(q, struct left, q);

	l->by = pthread_self();
	order[nr_run++] = l->nr;
}

static void test_order(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct left l[10];

	(void)state;
	nr_run = 0;
	assert_true(dc_file_enter(file));
	assert_false(dc_file_enter(file));
	for (int i = 0; i < 10; i++) {
		l[i] = (struct left){ .q.run = note, .nr = i };
		assert_true(dc_file_enqueue(file, &l[i].q));
	}
	assert_int_equal(nr_run, 0);
	dc_file_leave(file, 100);
	assert_int_equal(nr_run, 10);
	for (int i = 0; i < 10; i++)
		assert_int_equal(order[i], i);
	assert_int_equal(rig_counter(r, DC_CTR_COMBINED), 10);
	/* Who comes too late to be served is in himself. */
	assert_false(dc_file_enqueue(file, &l[0].q));
	assert_int_equal(nr_run, 10);
	assert_false(dc_file_enter(file));
	dc_file_leave(file, 1);
	assert_true(dc_file_enter(file));
	/* Who is in keeps the file: his reference may have been its last. */
	dc_file_put(file);
	assert_int_equal(rig_stats(r).files, 1);
	dc_file_leave(file, 1);
	assert_int_equal(rig_stats(r).files, 0);
	rig_free(r);
}

/* Without executors there is nobody to hand the rest to. */
static void test_batch_without_executor(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ 0 });
	struct dc_file *file = rig_file(r, 1);
	struct left l[10];

	(void)state;
	nr_run = 0;
	assert_true(dc_file_enter(file));
	for (int i = 0; i < 10; i++) {
		l[i] = (struct left){ .q.run = note, .nr = i };
		assert_true(dc_file_enqueue(file, &l[i].q));
	}
	dc_file_leave(file, 3);
	assert_int_equal(nr_run, 10);
	dc_file_put(file);
	rig_free(r);
}

static bool is_free(void *arg)
{
	struct dc_file *file = arg;
	bool writing;

	pthread_mutex_lock(&file->writers_lock);
	writing = file->writing;
	pthread_mutex_unlock(&file->writers_lock);
	return !writing;
}

static void test_batch_then_executor(void **state)
{
	enum { N = 300 };
	struct rig *r = rig_new(&(struct rig_options){ .executors = 2 });
	struct dc_file *file = rig_file(r, 1);
	struct left *l = calloc(N, sizeof(*l));

	(void)state;
	nr_run = 0;
	assert_true(dc_file_enter(file));
	for (int i = 0; i < N; i++) {
		l[i] = (struct left){ .q.run = note, .nr = i };
		assert_true(dc_file_enqueue(file, &l[i].q));
	}
	dc_file_leave(file, 3);
	rig_await(is_free, file, "the executor");
	assert_int_equal(nr_run, N);
	for (int i = 0; i < N; i++) {
		assert_int_equal(order[i], i);
		assert_int_equal(pthread_equal(l[i].by, pthread_self()) != 0, i < 3);
	}
	free(l);
	dc_file_put(file);
	rig_free(r);
}

/* ---- many at once ---- */

enum { THREADS = 6, EACH = 5000 };

struct crowd {
	struct dc_file *file;
	int inside; /* not atomic: only who is in touches it */
	uint64_t sum;
	_Atomic int left;
};

struct mine {
	struct dc_queued q;
	struct crowd *c;
	uint64_t value;
};

static void do_inside(struct crowd *c, uint64_t value)
{
	assert_int_equal(c->inside, 0);
	c->inside = 1;
	c->sum += value;
	if (value % 64 == 0)
		sched_yield();
	c->inside = 0;
	atomic_fetch_sub(&c->left, 1);
}

static void run_inside(struct dc_queued *q)
{
	struct mine *m = container_of_dc(q, struct mine, q);

	do_inside(m->c, m->value);
}

static void *crowd_thread(void *arg)
{
	struct mine *m = arg;

	for (int i = 0; i < EACH; i++) {
		if (dc_file_enter(m[i].c->file) || !dc_file_enqueue(m[i].c->file, &m[i].q)) {
			do_inside(m[i].c, m[i].value);
			dc_file_leave(m[i].c->file, 4);
		}
	}
	return NULL;
}

static bool nobody_left(void *arg)
{
	return atomic_load(&((struct crowd *)arg)->left) == 0;
}

static void test_none_lost(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .threads = true, .executors = 2 });
	struct crowd c = { .file = rig_file(r, 1), .left = THREADS * EACH };
	static struct mine m[THREADS][EACH];
	pthread_t thread[THREADS];
	uint64_t want = 0;

	(void)state;
	rig_watchdog(100, "a write that was left behind");
	for (int t = 0; t < THREADS; t++) {
		for (int i = 0; i < EACH; i++) {
			m[t][i] =
				(struct mine){ { run_inside, NULL }, &c, (uint64_t)(t * EACH + i) };
			want += m[t][i].value;
		}
	}
	for (int t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&thread[t], NULL, crowd_thread, m[t]), 0);
	for (int t = 0; t < THREADS; t++)
		pthread_join(thread[t], NULL);
	rig_await(nobody_left, &c, "everybody's write");
	rig_await(is_free, c.file, "the last to leave");
	assert_int_equal(c.sum, want);
	dc_file_put(c.file);
	rig_free(r);
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_batch_without_executor),
		cmocka_unit_test(test_batch_then_executor),
		cmocka_unit_test(test_none_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
