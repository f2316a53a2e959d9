/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * What the engine's tests stand on: one engine with one scripted device, one export, a clock that
 * the test moves, and files whose descriptors are real (the flusher looks at st_nlink).
 */
#ifndef TEST_RIG_H
#define TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fake_backend.h"
#include "internal.h"

#define KiB (1ULL << 10)
#define MiB (1ULL << 20)
#define GiB (1ULL << 30)
#define PAGE ((uint64_t)DC_PAGE_SIZE)
#define MSEC DC_NS_PER_MS
#define SEC DC_NS_PER_S

struct rig_options {
	bool threads, faulty;
	unsigned int executors, max_open_files;
	uint64_t limit, background;	      /* bytes; 0: 64 MiB and 16 MiB */
	uint64_t dirty_bytes;		      /* of all exports; 0: no such budget */
	dc_pace_law law;		      /* NULL: nothing is paced */
	struct dc_backend *(*make)(int *err); /* NULL: the scripted device */
};

struct rig {
	struct dc_engine *eng;
	struct dc_device *dev;
	struct dc_export *exp;
	struct fake *fake; /* NULL with another backend */
	struct dc_params params;
	_Atomic uint64_t now;
	_Atomic unsigned int resumed, logged, errors_logged;
	void *last_resumed;
	char last_log[512];
	char dir[64];
};

/** Makes a rig; fails the test if it cannot be made. */
struct rig *rig_new(const struct rig_options *opt);
/** Drains, checks that every counter is zero, frees. */
void rig_free(struct rig *r);
/** Frees everything but the export, which the test has freed. */
void rig_free_engine(struct rig *r);

/** A file, referenced, with a descriptor; `n` is its key. */
struct dc_file *rig_file(struct rig *r, unsigned int n);
/** Opens (makes) the file behind key `n`; for dc_file_set_fd(). */
int rig_open(struct rig *r, unsigned int n);
/** Removes its name. */
void rig_unlink(struct rig *r, unsigned int n);

/** Pins the file's descriptor, giving it one if it has none. */
void rig_begin(struct rig *r, struct dc_file *file);
/** A whole write, which must be admitted at once. */
void rig_write(struct rig *r, struct dc_file *file, uint64_t offset, uint64_t len, uint64_t client);
/** A whole COMMIT. */
int rig_commit(struct rig *r, struct dc_file *file, uint64_t client);

/** `n` rounds of the flusher, no time passing. */
void rig_poll(struct rig *r, unsigned int n);
/** Lets time pass, then polls once. */
void rig_pass(struct rig *r, uint64_t ns);
/** Polls until the flusher does nothing more; held operations stay held. */
void rig_settle(struct rig *r);

struct dc_export_stats rig_stats(struct rig *r);
uint64_t rig_counter(struct rig *r, enum dc_counter id);
/** Checks the sum: used = dirty + writeback + reserved + kept ready. Nothing may be running. */
void rig_check_sum(struct rig *r, uint64_t reserved_pages);

/** The real clock, for what waits for threads. */
uint64_t rig_real_ns(void);
/** Waits (really, at most a minute) until cond(arg); fails the test otherwise. */
void rig_await(bool (*cond)(void *arg), void *arg, const char *what);
/** Ends the program with a message if it is still running after `seconds`. */
void rig_watchdog(unsigned int seconds, const char *what);

#endif
