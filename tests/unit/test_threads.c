/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The engine with its threads running: the limit holds whatever many writers do, no wake-up is
 * ever lost, and a flusher that sleeps deeply is woken by all that needs it.
 *
 * Time stands still here (the virtual clock moves by a nanosecond per look), so no tick comes to
 * the rescue of a lost kick; and the device's wait() has no timeout, so none comes to the rescue of
 * a lost wake-up. What is lost hangs, and the watchdog tells.
 */
#include "rig.h"

#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WRITERS 8
#define FILES 4

struct writer {
	struct rig *r;
	struct dc_file *file[FILES];
	unsigned int nr, writes;
	uint64_t max_pages, region; /* pages of a file that it writes to */
	bool in_executor;	    /* the parked write is carried out where run() is called */
	uint64_t seed;
	pthread_t thread;
	/* of the parked write */
	struct dc_waiter w;
	sem_t ran;
	int status;
	uint64_t offset;
	struct dc_file *target;
	uint64_t refused, cancelled;
};

static uint64_t rnd(uint64_t *seed, uint64_t n)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return (*seed * 0x2545f4914f6cdd1dULL >> 16) % n;
}

static void carry_out(struct writer *me, uint64_t pages)
{
	uint64_t len = pages * PAGE;

	if (!dc_write_begin(me->target)) {
		dc_unreserve(me->r->exp, pages); /* it was closed: idle */
		return;
	}
	if (rnd(&me->seed, 16) == 0)
		len = rnd(&me->seed, len); /* short, perhaps nothing */
	if (rnd(&me->seed, 8) == 0)
		sched_yield();
	dc_write_done(me->target, me->offset, len, pages, me->nr, dc_file_errors(me->target),
		      false);
}

static void ran(struct dc_waiter *w, int status)
{
	struct writer *me = container_of_dc(w, struct writer, w);

	me->status = status;
	if (status == 0 && me->in_executor)
		carry_out(me, w->pages);
	sem_post(&me->ran);
}

static void *writer_thread(void *arg)
{
	struct writer *me = arg;

	for (unsigned int i = 0; i < me->writes; i++) {
		uint64_t pages = 1 + rnd(&me->seed, me->max_pages);
		enum dc_parking answer = DC_ADMITTED;

		me->target = me->file[rnd(&me->seed, FILES)];
		me->offset = rnd(&me->seed, me->region) * PAGE;
		if (!dc_admit(me->r->exp, pages)) {
			me->w.pages = pages;
			me->w.bytes = pages * PAGE;
			me->w.connection = me;
			me->w.run = ran;
			answer = dc_park(me->r->exp, &me->w);
		}
		switch (answer) {
		case DC_ADMITTED:
			carry_out(me, pages);
			break;
		case DC_REFUSED:
			me->refused++;
			break;
		default:
			while (sem_wait(&me->ran) < 0)
				;
			if (me->status != 0)
				me->cancelled++;
			else if (!me->in_executor)
				carry_out(me, pages);
		}
	}
	return NULL;
}

struct sampler {
	struct rig *r;
	uint64_t limit; /* pages */
	_Atomic bool stop;
	_Atomic uint64_t over, samples;
	pthread_t thread;
};

static void *sampler_thread(void *arg)
{
	struct sampler *s = arg;

	while (!atomic_load(&s->stop)) {
		if (atomic_load(&s->r->exp->used) > s->limit)
			atomic_fetch_add(&s->over, 1);
		atomic_fetch_add(&s->samples, 1);
		if (atomic_load(&s->samples) % 64 == 0)
			sched_yield();
	}
	return NULL;
}

static void run_writers(struct rig *r, unsigned int writes, uint64_t max_pages, uint64_t region,
			bool in_executor, void (*meanwhile)(struct rig *r, unsigned int i),
			uint64_t highest_limit)
{
	struct writer *w = calloc(WRITERS, sizeof(*w));
	struct dc_file *file[FILES];
	struct sampler s = { .r = r, .limit = highest_limit / PAGE };

	for (unsigned int i = 0; i < FILES; i++)
		file[i] = rig_file(r, i);
	assert_int_equal(pthread_create(&s.thread, NULL, sampler_thread, &s), 0);
	for (unsigned int i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ .r = r,
					.nr = i,
					.writes = writes,
					.max_pages = max_pages,
					.region = region,
					.in_executor = in_executor,
					.seed = 77 + i };
		memcpy(w[i].file, file, sizeof(file));
		sem_init(&w[i].ran, 0, 0);
		assert_int_equal(pthread_create(&w[i].thread, NULL, writer_thread, &w[i]), 0);
	}
	for (unsigned int i = 0; meanwhile && i < 50; i++)
		meanwhile(r, i);
	for (unsigned int i = 0; i < WRITERS; i++) {
		pthread_join(w[i].thread, NULL);
		sem_destroy(&w[i].ran);
		assert_int_equal(w[i].refused, 0);
		assert_int_equal(w[i].cancelled, 0);
	}
	atomic_store(&s.stop, true);
	pthread_join(s.thread, NULL);
	assert_int_equal(s.over, 0);
	assert_true(s.samples > 0);
	assert_true(rig_counter(r, DC_CTR_PARKED) > 0); /* or it tested nothing */
	for (unsigned int i = 0; i < FILES; i++)
		dc_file_put(file[i]);
	free(w);
}

static void check_quiescent(struct rig *r)
{
	rig_check_sum(r, 0);
	assert_true(atomic_load(&r->exp->used) <= atomic_load(&r->exp->limit));
}

static bool flushed(void *arg)
{
	struct rig *r = arg;

	return atomic_load(&r->exp->writeback) == 0 &&
	       dc_dirty_pages(r->exp) <= atomic_load(&r->exp->background);
}

static void stress(unsigned int writes, uint64_t max_pages, uint64_t region, bool in_executor,
		   uint64_t limit, uint64_t background)
{
	struct rig *r = rig_new(&(struct rig_options){
		.threads = true, .executors = 2, .limit = limit, .background = background });

	rig_watchdog(100, "writers against a small budget: a kick or a wake-up was lost");
	pthread_mutex_lock(&r->fake->lock);
	r->fake->no_timeout = true;
	pthread_mutex_unlock(&r->fake->lock);
	run_writers(r, writes, max_pages, region, in_executor, NULL, limit);
	/* Over its level, it must come down to it by itself. */
	rig_await(flushed, r, "the flusher to reach the background level");
	check_quiescent(r);
	rig_free(r);
	alarm(0);
}

static void test_limit_holds(void **state)
{
	(void)state;
	stress(3000, 256, 1 << 20, false, 8 * MiB, 2 * MiB);
}

static void test_limit_holds_small_writes(void **state)
{
	(void)state;
	stress(10000, 4, 1 << 20, false, 128 * KiB, 124 * KiB);
}

static void test_limit_holds_overwrites(void **state)
{
	(void)state;
	stress(4000, 256, 4096, true, 8 * MiB, 6 * MiB);
}

static void change_limit(struct rig *r, unsigned int i)
{
	r->params.dirty_bytes = (i % 2 ? 4 : 4 + i % 13) * MiB;
	r->params.dirty_background_bytes = i % 3 ? 0 : 1 * MiB;
	r->params.drop_behind = i % 5 != 0;
	dc_export_set_params(r->exp, &r->params);
	usleep(500);
}

static void test_limit_changes_under_load(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.threads = true, .executors = 2, .limit = 8 * MiB, .background = 2 * MiB });

	(void)state;
	rig_watchdog(100, "writers while the limit changes: a kick was lost");
	run_writers(r, 2000, 256, 1 << 20, true, change_limit, 16 * MiB);
	rig_await(flushed, r, "the flusher to reach the background level");
	check_quiescent(r);
	rig_free(r);
	alarm(0);
}

/* ---- an export that ends while writes are parked ---- */

static void *drain_thread(void *arg)
{
	struct rig *r = arg;

	usleep(20000);
	dc_export_drain(r->exp, 60 * SEC);
	return NULL;
}

static void test_drain_under_load(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){
		.threads = true, .executors = 2, .limit = 8 * MiB, .background = 2 * MiB });
	struct writer *w = calloc(WRITERS, sizeof(*w));
	struct dc_file *file[FILES];
	pthread_t drainer;
	uint64_t ended = 0;

	(void)state;
	rig_watchdog(100, "draining while writers write");
	for (unsigned int i = 0; i < FILES; i++)
		file[i] = rig_file(r, i);
	/* Nothing completes, so that the writers all end up parked. */
	pthread_mutex_lock(&r->fake->lock);
	r->fake->hold = FAKE_BIT(DC_OP_WRITEBACK);
	pthread_mutex_unlock(&r->fake->lock);
	for (unsigned int i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ .r = r,
					.nr = i,
					.writes = 500,
					.max_pages = 256,
					.region = 1 << 20,
					.seed = 99 + i };
		memcpy(w[i].file, file, sizeof(file));
		sem_init(&w[i].ran, 0, 0);
		assert_int_equal(pthread_create(&w[i].thread, NULL, writer_thread, &w[i]), 0);
	}
	assert_int_equal(pthread_create(&drainer, NULL, drain_thread, r), 0);
	for (unsigned int i = 0; i < WRITERS; i++) {
		pthread_join(w[i].thread, NULL);
		ended += w[i].cancelled + w[i].refused;
		sem_destroy(&w[i].ran);
	}
	assert_true(ended > 0);
	pthread_mutex_lock(&r->fake->lock);
	r->fake->hold = 0;
	pthread_mutex_unlock(&r->fake->lock);
	fake_release(r->fake, UINT32_MAX, 0);
	pthread_join(drainer, NULL);
	for (unsigned int i = 0; i < FILES; i++)
		dc_file_put(file[i]);
	free(w);
	rig_free(r);
	alarm(0);
}

/* ---- deep sleep ---- */

static bool asleep(void *arg)
{
	struct rig *r = arg;

	/* The clock would stand still for the flusher if nobody moved it. */
	atomic_fetch_add(&r->now, 300 * MSEC);
	return atomic_load(&r->dev->deep_sleep);
}

static bool nothing_dirty(void *arg)
{
	struct rig *r = arg;

	atomic_fetch_add(&r->now, 300 * MSEC);
	return rig_stats(r).dirty == 0 && rig_stats(r).unsynced_files == 0;
}

struct fd_of {
	struct rig *r;
	struct dc_file *file;
};

static bool fd_is_closed(void *arg)
{
	struct fd_of *f = arg;
	int fd;

	atomic_fetch_add(&f->r->now, 300 * MSEC);
	pthread_mutex_lock(&f->file->lock);
	fd = f->file->fd;
	pthread_mutex_unlock(&f->file->lock);
	return fd < 0;
}

static void test_deep_sleep_ends(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .threads = true });
	struct dc_file *file = rig_file(r, 1);
	int err;

	(void)state;
	rig_watchdog(100, "a flusher that sleeps deeply");
	/* One dirty page: written when it expires, then synced, then its descriptor closed. */
	for (int i = 0; i < 3; i++) {
		rig_await(asleep, r, "the flusher to sleep");
		rig_write(r, file, 0, PAGE, 1);
		rig_await(nothing_dirty, r, "expiry");
		rig_await(fd_is_closed, &(struct fd_of){ r, file }, "the descriptor to be closed");
	}
	/* A COMMIT of a clean file opens a descriptor; it is closed again as well. */
	rig_await(asleep, r, "the flusher to sleep");
	dc_file_put(file);
	file = rig_file(r, 2);
	assert_false(dc_commit_is_free(file, DC_CLIENT(1, 0), &err));
	assert_int_equal(rig_commit(r, file, 1), 0);
	rig_await(fd_is_closed, &(struct fd_of){ r, file }, "the descriptor to be closed");
	/* Background excess and parked writes wake it too. */
	rig_await(asleep, r, "the flusher to sleep");
	rig_write(r, file, 0, 40 * MiB, 1);
	rig_await(flushed, r, "the background level");
	dc_file_put(file);
	rig_free(r);
	alarm(0);
}

/* A descriptor given while the flusher sleeps (an open whose write then failed). */
static void test_idle_descriptor_in_deep_sleep(void **state)
{
	struct rig *r = rig_new(&(struct rig_options){ .threads = true, .max_open_files = 4 });
	struct dc_file *file[20];
	struct fd_of f = { .r = r };

	(void)state;
	rig_watchdog(100, "idle descriptors while the flusher sleeps");
	rig_await(asleep, r, "the flusher to sleep");
	for (unsigned int i = 0; i < 20; i++)
		file[i] = rig_file(r, i);
	for (unsigned int i = 0; i < 20; i++) {
		f.file = file[i];
		rig_await(fd_is_closed, &f, "an idle descriptor to be closed");
		dc_file_put(file[i]);
	}
	rig_free(r);
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limit_holds),
		cmocka_unit_test(test_limit_holds_small_writes),
		cmocka_unit_test(test_limit_holds_overwrites),
		cmocka_unit_test(test_limit_changes_under_load),
		cmocka_unit_test(test_drain_under_load),
		cmocka_unit_test(test_deep_sleep_ends),
		cmocka_unit_test(test_idle_descriptor_in_deep_sleep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
