/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The engine: dirty budgets, the flusher, COMMIT. It knows no Ganesha type and keeps no global
 * state; clock, log, threads and devices come from its owner.
 *
 * The life of one UNSTABLE write, as its owner (fsal/write.c) must drive it:
 *
 *     dc_write_begin(), dc_file_errors(), dc_write_need()   pins the descriptor; how many pages?
 *     dc_admit()  --no-->  dc_write_unpin(), dc_park() ... waiter->run(): begins anew, admitted
 *         |
 *     the sub-FSAL's write
 *     dc_write_done()                                  records, kicks (R5: before the reply)
 *
 * Lock order (each may be taken while holding those to its left, never the reverse):
 *
 *     dc_device.lock -> dc_file.lock -> dc_export.lock -> dc_pool.lock
 *                       dc_file.lock -> dc_engine.idle_lock
 *     file table shard lock: a leaf, nothing is taken under it
 *
 * Callbacks into the owner (waiter->run, stable->done, client_resume) are made with none of them held;
 * log() may be called with any.
 */
#ifndef DONTCACHE_ENGINE_H
#define DONTCACHE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "dontcache/backend.h"
#include "dontcache/counters.h"
#include "dontcache/pacing.h"
#include "dontcache/params.h"

struct dc_engine;
struct dc_device;
struct dc_export;
struct dc_file;

enum dc_log_level { DC_LOG_INFO, DC_LOG_WARN, DC_LOG_ERROR };

/* What the engine asks of its owner. All may be called from any thread. */
struct dc_host_ops {
	uint64_t (*now_ns)(void *host); /* monotonic; never 0 */
	void (*log)(void *host, enum dc_log_level level, const char *text);
	/* The connection that dc_park() answered DC_PARKED_HOLD for may be read from again. Called
	 * before the last of its waiters runs, so the connection still exists. May be NULL. */
	void (*client_resume)(void *host, void *connection);
};

struct dc_engine_options {
	unsigned int executors;	     /* per device, threads that run admitted waiters; 0: the
				      * releaser's own */
	unsigned int max_open_files; /* own descriptors; past it dc_fd_room() says no; 0: 1024 */
	bool threads;	 /* false: no flusher thread, the owner calls dc_device_poll() */
	dc_pace_law law; /* how writes are let in above freerun; NULL: at once, up to the limit */
	uint64_t dirty_bytes; /* the budget of all exports together; 0: no more than the sum of theirs */
};

/** Makes an engine. `ops` and `host` must outlive it. */
struct dc_engine *dc_engine_new(const struct dc_host_ops *ops, void *host,
				const struct dc_engine_options *options);

/** Ends the engine's threads and frees it. Every export must have been freed. */
void dc_engine_free(struct dc_engine *eng);

/**
 * The device `id` (st_dev), made on first use with `make`'s backend and one flusher thread.
 * `make` may be NULL: io_uring, else plain system calls, the fallback being logged once.
 * The engine owns the device and frees it in dc_engine_free().
 * @return NULL with *err = -errno when no backend could be made.
 */
struct dc_device *dc_device_get(struct dc_engine *eng, uint64_t id,
				struct dc_backend *(*make)(int *err), int *err);

/**
 * The same, for a device that can be told to fail: see dontcache/fault.h. *err = -EBUSY if it was made
 * without that before.
 */
struct dc_device *dc_device_get_faulty(struct dc_engine *eng, uint64_t id,
				       struct dc_backend *(*make)(int *err), int *err);

/** Replaces the device's fault rules. false with a message in msg[DC_FAULT_MSG] if they are wrong or
 * the device cannot be told to fail. */
bool dc_device_fault(struct dc_device *dev, const char *spec, char *msg);

/** What the rules say to a client's write, which may be delayed in here.
 * @return 0 with *len perhaps shortened, or -errno: answer so, write nothing. */
int dc_write_fault(struct dc_export *exp, uint64_t offset, uint64_t *len);

/** One round of the flusher: at most `timeout_ns` of waiting (< 0: as long as the flusher itself
 * would). For owners without threads: tests and the simulator. */
void dc_device_poll(struct dc_device *dev, int64_t timeout_ns);

/** How long the flusher may wait for completions and wake-ups until the next round, ns. */
uint64_t dc_device_timeout(const struct dc_device *dev, uint64_t now);

/* ---- exports ---- */

/** The device of an export. */
struct dc_device *dc_export_device(const struct dc_export *exp);

/** Makes an export on `dev`; `path` is copied. */
struct dc_export *dc_export_new(struct dc_device *dev, uint32_t id, const char *path,
				const struct dc_params *params);

/** A new budget for all exports together, bytes; 0: no more than the sum of theirs. Exports that have more
 * than their part of it get back to that as their pages are written. */
void dc_engine_set_dirty_bytes(struct dc_engine *eng, uint64_t bytes);

/** New limits, in force for the next admission; already checked by dc_params_check(). A smaller
 * limit admits nothing until enough was written back; nothing admitted is dropped. */
void dc_export_set_params(struct dc_export *exp, const struct dc_params *params);
void dc_export_get_params(struct dc_export *exp, struct dc_params *params);

/** Ends parking: every waiter runs with status -ECANCELED, later dc_park() calls answer
 * DC_REFUSED; then writes everything back, for at most `timeout_ns`.
 * @return bytes still dirty or under writeback. */
uint64_t dc_export_drain(struct dc_export *exp, uint64_t timeout_ns);

/** Takes the export off its device and frees it once its last file is gone. Drain it first; if
 * I/O is still in flight after `timeout_ns` (a dead device) it is leaked and false returned. */
bool dc_export_free(struct dc_export *exp, uint64_t timeout_ns);

/** Has the export any dirty file? A hint, for what would be useless otherwise. */
bool dc_export_has_dirty(struct dc_export *exp);

/** Grows with every recorded I/O error; part of the NFSv4 write verifier. */
uint64_t dc_export_error_generation(const struct dc_export *exp);

/* ---- admission (src/admit.c) ---- */

/** Pages that a write of len bytes at offset touches. */
static inline uint64_t dc_write_pages(uint64_t offset, uint64_t len)
{
	return ((offset + len - 1) >> 12) - (offset >> 12) + 1;
}

/**
 * Reserves `pages` of the export's budget if that needs no waiting.
 * The fast path: no lock, and no cache line that another CPU's writers write.
 */
bool dc_admit(struct dc_export *exp, uint64_t pages);

/** Reserves `pages` more for a write that was admitted and turns out to need them, if the limit allows. It
 * costs no credit and does not queue. */
bool dc_admit_more(struct dc_export *exp, uint64_t pages);

/** Is the budget within an eighth of its limit, so that writes may have to be parked soon? The owner
 * may then receive less eagerly. One relaxed load. */
bool dc_near_limit(const struct dc_export *exp);

/** Gives back what a failed or shorter write did not use. */
void dc_unreserve(struct dc_export *exp, uint64_t pages);

enum dc_parking {
	DC_ADMITTED,	/* there was room after all: go on; run() will not be called */
	DC_PARKED,	/* run() will be called, maybe before dc_park() returns */
	DC_PARKED_HOLD, /* the same; and this connection is over its share of Parked_Bytes: stop
			 * reading from it until client_resume() */
	DC_REFUSED,	/* far over Parked_Bytes, or the export is being drained: answer DELAY */
};

/* A parked write. The caller owns the memory; the engine uses it until run() is called. */
struct dc_waiter {
	uint64_t pages;	  /* to be reserved: what is needed now; see dc_admit_more() */
	uint64_t bytes;	  /* of payload held in memory, for Parked_Bytes, and what is paced */
	uint64_t client;  /* fairness is between clients */
	void *connection; /* holding back is per connection */
	/* Called once, with nothing of the engine's locked, by an executor: never by the flusher.
	 * status 0: admitted; -ECANCELED: the export is being drained, nothing is reserved. */
	void (*run)(struct dc_waiter *w, int status);
	/* the engine's */
	struct dc_export *exp;
	uint64_t since_ns;
	uint64_t start, order; /* fair.h */
	int status;
	bool resume; /* client_resume() comes before run() */
	struct dc_waiter *next;
};

/** Parks a write that dc_admit() did not admit. *w must be complete: it may run at once. */
enum dc_parking dc_park(struct dc_export *exp, struct dc_waiter *w);

/* ---- files (src/file.c) ---- */

#define DC_KEY_MAX 64

/** The file with this key (the sub-FSAL's handle key, at most DC_KEY_MAX bytes) in this export,
 * with a reference for the caller; made if it is not known. */
struct dc_file *dc_file_get(struct dc_export *exp, const void *key, size_t len);

/** Drops a reference. A file lives on while it is dirty, unsynced, or owes somebody an error. */
void dc_file_put(struct dc_file *file);

/**
 * Opens a write (or a COMMIT): pins the file's own descriptor.
 * @return false if there is none: get one and call dc_file_set_fd(), then try again; or, if none is
 *         to be had, do the I/O without and make it durable at once through the sub-FSAL (R9).
 */
bool dc_write_begin(struct dc_file *file);

/**
 * Pages to be reserved for a write of len bytes at offset: those it touches, or, if folios that are
 * cached already may make the kernel count more, whole windows (src/inflate.c). Pinned.
 */
uint64_t dc_write_need(struct dc_file *file, uint64_t offset, uint64_t len);

/** The most that dc_write_need() may answer: what a parked write must be admitted for if it found, when it
 * was let in, that it needs more than it was admitted for. */
uint64_t dc_write_windows(uint64_t offset, uint64_t len);

/** Errors recorded in this file so far. To be read before a write begins and given to
 * dc_write_done(): an error that took the write's pages before it was recorded concerns its client
 * too, and the engine did not know of it then. */
uint64_t dc_file_errors(struct dc_file *file);

/** May another descriptor be opened, for a file of `exp`? Closes idle ones first. If not, do without
 * (R9): the flusher is told to clean files for theirs. */
bool dc_fd_room(struct dc_export *exp);

/** The process has no descriptor left, whoever has them: closes idle ones of ours and lowers our cap; it
 * grows back when that has not happened for ten seconds. */
void dc_fd_shed(struct dc_engine *eng);

/** Is this the file's export? One file reached through two exports is two files here. */
bool dc_file_is_of(const struct dc_file *file, const struct dc_export *exp);

/** Gives the file a descriptor of its own (reading suffices); ownership passes to the engine. If it
 * has one already, `fd` is closed. */
void dc_file_set_fd(struct dc_file *file, int fd);

/**
 * The write happened: records [offset, offset + len) as dirty and kicks the flusher if the export is
 * over its background level. `len` is what was really written; 0 if it failed. Gives back what is
 * left of the reservation. `client` identifies who must be told of an error (DC_CLIENT()), `errors` is
 * dc_file_errors() from before the write. Call before the reply goes out (R5). Unpins, unless `stable`:
 * then dc_stable_sync() must follow, and the file owes no COMMIT for this write.
 */
void dc_write_done(struct dc_file *file, uint64_t offset, uint64_t len, uint64_t reserved_pages,
		   uint64_t client, uint64_t errors, bool stable);

/* Who is to be told: the host is known by its address, the connection tells clients of one address
 * apart. One host's connections that did not write are taken for those of it that did. */
#define DC_CLIENT(host, connection) ((uint64_t)(host) << 32 | (uint32_t)(connection))
#define DC_CLIENT_HOST(client) ((uint32_t)((client) >> 32))

/** Unpins after a COMMIT or when nothing was written and nothing reserved. */
void dc_write_unpin(struct dc_file *file);

/** Grows with each recorded write, and each edge (dc_file_edge()). Read it before an operation that shrinks the
 * file. */
uint64_t dc_file_seq(struct dc_file *file);

/* These shrink claims AFTER the sub-FSAL did the operation, and cannot fail (R7). `seq` is
 * dc_file_seq() from before it: if a write was recorded since, nobody can tell which came first, and
 * all claims stay (R4: they end when they are flushed). */
void dc_file_truncated(struct dc_file *file, uint64_t new_size, uint64_t seq);
void dc_file_punched(struct dc_file *file, uint64_t offset, uint64_t len, uint64_t seq);

/** The file's size as its descriptor sees it, which must be pinned. */
uint64_t dc_file_size(struct dc_file *file);

/** Something other than a write (a change of size, a hole) may have zeroed a part of the page at
 * `offset`, and so dirtied it, with its folio: claims what the kernel counts there, or, if the budget has
 * no room, writes it back at once. Pinned. */
void dc_file_edge(struct dc_file *file, uint64_t offset);

/** A link was removed. If it was the last one, nothing of the file is worth writing: its claims end
 * and its descriptor is closed, so that the space is freed. */
void dc_file_check_links(struct dc_file *file);

/** Finds a file that exists in the table, without making one; NULL otherwise. */
struct dc_file *dc_file_find(struct dc_export *exp, const void *key, size_t len);

/** What `client` is owed, told once: for a COMMIT that the sub-FSAL did. 0 or -errno. */
int dc_file_told(struct dc_file *file, uint64_t client);

/** Somebody else (the sub-FSAL's commit or close) saw an I/O error of this file: -errno. */
void dc_file_error(struct dc_file *file, int err);

/* ---- durability (src/commit.c) ---- */

/**
 * Is everything recorded so far durable already? Then *err is what `client` is to be told (0, or
 * -errno of an earlier error, once), and no descriptor was needed.
 */
bool dc_commit_is_free(struct dc_file *file, uint64_t client, int *err);

/**
 * Makes everything durable that was recorded before the call in [offset, offset + len), len 0: to the
 * end of the file, as fdatasync(2) would; more if that costs little. Blocks. The descriptor must be
 * pinned (dc_write_begin()).
 * @return 0, or -errno: this sync's error, one that was recorded in the file since the call began, or
 *         an earlier one that `client` had not been told of (it is told now, once).
 */
int dc_commit(struct dc_file *file, uint64_t client, uint64_t offset, uint64_t len);

/* ---- stable writes (src/stable.c) ---- */

/* Something that waits for a device: the engine's, for its watchdog. */
struct dc_watch {
	struct dc_file *file; /* referenced by whoever waits */
	const char *what;
	uint64_t offset, len, since;
	TAILQ_ENTRY(dc_watch) link;
};

/* A stable write on its way to the device. The caller's memory, until done() is called. */
struct dc_stable {
	uint64_t offset, len; /* bytes, len > 0: what was written */
	uint64_t client;
	uint64_t errors; /* dc_file_errors() from before the write */
	bool begun;	 /* what dc_stable_begin() answered */
	/* Called once, with nothing of the engine's locked, by the device's sync thread (which must
	 * not be held up long) or before dc_stable_sync() returns. res: 0, or -errno as from
	 * dc_commit(). Not called if the export was freed meanwhile: on a device that hangs. */
	void (*done)(struct dc_stable *s, int res);
	/* the engine's */
	struct dc_op op;
	struct dc_file *file;
	uint64_t pages;
	int res;
	STAILQ_HEAD(, dc_stable) riders;
	STAILQ_ENTRY(dc_stable) queue;
	struct dc_watch watch;
};

/** Prepares for a stable write; call between dc_write_begin() and the write. The answer goes into
 * dc_stable.begun: a descriptor that is opened only after the write may have missed its error. */
bool dc_stable_begin(struct dc_file *file);

/** Makes what was written durable, and nothing else, then calls s->done(). Does not block, except
 * where no further descriptor was to be had: then the whole file is synced by the caller. Takes over
 * the caller's pin. After dc_write_done(stable). */
void dc_stable_sync(struct dc_file *file, struct dc_stable *s);

/* ---- what is going on ---- */

/** Counts a write that the owner made durable at once for want of a descriptor. */
void dc_count_write_through(struct dc_export *exp);

struct dc_export_stats {
	uint32_t id;
	const char *path;
	uint64_t dirty, writeback, reserved, unsynced_files, files, dirty_files; /* bytes; counts */
	uint64_t parked, parked_bytes, parked_connections, held;
	uint64_t used; /* dirty + writeback + reserved + kept ready per CPU: what the limit is on */
	uint64_t usable; /* what of the limit is the export's for now: less if others need the server's */
	uint64_t background, freerun, setpoint; /* levels that follow from it */
	uint64_t completion_rate,
		admission_rate; /* bytes per second; the second while writes wait */
	uint64_t counters[DC_NR_COUNTERS];
	struct dc_params params;
};

struct dc_device_stats {
	uint64_t id;
	const char *backend;
	uint64_t bandwidth; /* bytes per second, 0: not measured yet */
	uint64_t writeback; /* bytes in flight */
	uint64_t window;    /* bytes allowed in flight for a window of 100 ms */
};

struct dc_pool_stats {
	uint64_t dirty_bytes; /* 0: no budget for all */
	uint64_t granted, limits,
		mins; /* sums over all exports: may use now, Dirty_Bytes, Min_Bytes */
};

void dc_pool_stats(struct dc_engine *eng, struct dc_pool_stats *stats);

/** Reads an export's state. Costs writers nothing; figures may be a moment apart. */
void dc_export_stats(struct dc_export *exp, struct dc_export_stats *stats);

/** Calls `each` for every device, then returns. Devices are never removed while an engine lives. */
void dc_engine_devices(struct dc_engine *eng,
		       void (*each)(void *arg, const struct dc_device_stats *stats), void *arg);

#endif
