/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The simulator: the engine's own code (admission, pacing, pool, flusher, dirty maps) on a virtual clock,
 * with virtual devices and closed-loop clients. One thread; the same seed gives the same result.
 *
 *   scenario.c  reads a scenario (scenarios/README.md has the words)
 *   device.c    devices: a backend each
 *   client.c    clients: what they write, and what becomes of it
 *   measure.c   what is measured, and what is expected of it
 *   laws.c      other pacing laws, for comparison
 *   sim.c       the clock and its events
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "internal.h"

#define SIM_NEVER UINT64_MAX
#define SIM_NAME 32
#define SIM_MAX_GROUPS 32
#define SIM_MAX_STEPS 32

/* ---- devices ---- */

struct sim_step {
	uint64_t at;
	double rate;
};

struct sim_device {
	struct dc_backend be; /* first */
	struct dc_device *dev;
	struct sim *sim;
	/* what it is like */
	double rate, low; /* bytes per second; low: in every second half of `every` */
	uint64_t every, op_ns, seek_ns;
	struct sim_step step[SIM_MAX_STEPS];
	unsigned int nr_steps;
	bool fails; /* every operation fails with EIO */
	/* what it does */
	struct dc_op *first, **last; /* in service, in order */
	uint64_t *finish;	     /* of those, ring */
	uint32_t head, nr, cap;
	struct dc_op *done, **done_last;
	uint64_t free_at; /* when all that is queued is done */
	uint64_t next_poll;
	uint64_t next_offset;
	int next_fd;
	/* measured */
	uint64_t busy_ns, lost_ns, idle_since; /* idle with work to do */
	uint64_t written;
};

struct sim_devices {
	char name[SIM_NAME];
	unsigned int count;
	struct sim_device *dev;
};

/* ---- exports ---- */

struct sim_export {
	struct dc_export *exp;
	struct sim_device *dev;
	uint64_t samples, near, off_peak; /* of the set point, while it was held there */
	double off_sum;
	uint64_t peak; /* bytes dirty and under writeback */
};

struct sim_exports {
	char name[SIM_NAME];
	unsigned int count;
	struct dc_params params;
	struct sim_export *exp;
};

/* ---- clients ---- */

#define SIM_BUCKETS 400 /* of latency: 1 us * 1.06^i */

struct sim_write {
	struct dc_waiter w;
	struct sim_client *client;
	struct dc_file *file;
	uint64_t offset, issued;
};

struct sim_client {
	struct sim_clients *group;
	unsigned int id;
	struct sim_export *exp;
	struct dc_file *file;
	unsigned int file_no;
	uint64_t offset;
	bool held;
	struct sim_write *write, **idle; /* idle: not sent because it is held back */
	unsigned int nr_idle;
	uint64_t bytes, window_bytes; /* done: measured, of this window */
	double sum, squares;	      /* over windows */
};

struct sim_clients {
	char name[SIM_NAME];
	struct sim *sim;
	unsigned int count, depth, files;
	uint64_t block, size, rtt_ns, start, stop, think_ns;
	bool random;
	struct sim_client *client;
	uint64_t latency[SIM_BUCKETS], latency_max, writes;
	uint64_t gap_max, last_done; /* longest time in which none of them got anything */
	unsigned int windows;
};

/* ---- what happens later ---- */

enum sim_what { SIM_ISSUE, SIM_POLL, SIM_SAMPLE, SIM_WINDOW, SIM_CHANGE };

struct sim_event {
	uint64_t at, order;
	enum sim_what what;
	void *arg;
};

struct sim_change {
	uint64_t at;
	struct sim_exports *exports; /* NULL: the server's Dirty_Bytes */
	struct dc_params params;
	uint64_t global;
};

struct sim_expect {
	char text[120];
	unsigned int line;
};

struct sim {
	const char *file;
	uint64_t now, order, seed;
	struct dc_engine *eng;
	struct sim_event *heap;
	uint32_t heap_nr, heap_cap;
	uint64_t global, from, to, sample_ns;
	dc_pace_law law;
	struct sim_devices devices[SIM_MAX_GROUPS];
	struct sim_exports exports[SIM_MAX_GROUPS];
	struct sim_clients clients[SIM_MAX_GROUPS];
	struct sim_change change[SIM_MAX_GROUPS];
	struct sim_expect expect[SIM_MAX_GROUPS];
	unsigned int nr_devices, nr_exports, nr_clients, nr_changes, nr_expects;
	FILE *trace;
	/* measured */
	uint64_t over_budget, over_global, refused, dirty_files, logged, events, next_fd;
	bool ended;
};

/* sim.c */
void sim_at(struct sim *s, uint64_t at, enum sim_what what, void *arg);
uint64_t sim_random(struct sim *s);

/* scenario.c: exits with a message of file, line and word if it is wrong */
void sim_read(struct sim *s, const char *path);

/* device.c */
void sim_device_start(struct sim *s, struct sim_device *d, uint64_t id);
void sim_device_poll(struct sim_device *d);
void sim_device_drain(struct sim_device *d);

/* client.c */
void sim_client_start(struct sim *s, struct sim_clients *group, struct sim_client *c);
void sim_issue(struct sim_write *w);
void sim_resume(struct sim_client *c);
void sim_client_end(struct sim_client *c);

/* measure.c */
void sim_sample(struct sim *s);
void sim_window(struct sim *s);
void sim_latency(struct sim_clients *g, uint64_t ns);
/** Prints everything as JSON; returns the number of expectations that failed, each told on stderr. */
int sim_report(struct sim *s, FILE *out, double real_s);

/* laws.c */
dc_pace_law sim_law(const char *name, bool *known);

#endif
