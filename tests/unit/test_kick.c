/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * No kick is lost: a write that comes at any point of the flusher's round at which it holds no lock is
 * acted upon, without time passing and without another kick.
 *
 * Every such point is tried: the n-th time that the flusher lets go of its last lock, a write takes the
 * export over its background level. Threads would hit the few points that matter once in a blue moon.
 */
#include "rig.h"

#include <string.h>

int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);

static struct {
	struct rig *r;
	struct dc_file *file;
	unsigned int depth, seen, at; /* locks held; times none was held, and which of them */
	bool armed, done;
} hook;

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
	hook.depth++;
	return __real_pthread_mutex_lock(lock);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
	int rc = __real_pthread_mutex_unlock(lock);

	hook.depth--;
	if (hook.armed && hook.depth == 0 && ++hook.seen == hook.at) {
		hook.armed = false;
		hook.done = true;
		rig_write(hook.r, hook.file, 0, 24 * MiB, 2);
	}
	return rc;
}

/* Returns whether there is an n-th point at all. */
static bool write_at(unsigned int n, bool flushing)
{
	struct rig *r =
		rig_new(&(struct rig_options){ .limit = 256 * MiB, .background = 16 * MiB });
	struct dc_file *other = rig_file(r, 1);
	bool done;

	memset(&hook, 0, sizeof(hook));
	hook.r = r;
	hook.file = rig_file(r, 2);
	rig_write(r, other, 0, 12 * MiB, 1);
	if (flushing)
		rig_write(r, other, 12 * MiB, 12 * MiB, 1);
	else
		dc_kick(r->exp); /* nothing to do: the export leaves at once */
	hook.at = n;
	hook.armed = true;
	rig_settle(r);
	done = hook.done;
	hook.armed = false;
	rig_settle(r); /* the last point is at the end of the last round */
	if (done && rig_stats(r).dirty > 16 * MiB)
		fail_msg("%llu bytes stay dirty after a write at point %u%s",
			 (unsigned long long)rig_stats(r).dirty, n, flushing ? ", flushing" : "");
	dc_file_put(other);
	dc_file_put(hook.file);
	rig_free(r);
	return done;
}

static void test_write_at_every_point(void **state)
{
	unsigned int points = 0;

	(void)state;
	for (unsigned int n = 1; write_at(n, false); n++)
		points++;
	assert_true(points >= 2);
	print_message("    %u points with nothing to flush", points);
	points = 0;
	for (unsigned int n = 1; write_at(n, true); n++)
		points++;
	assert_true(points >= 8);
	print_message(", %u while flushing\n", points);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_write_at_every_point),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
