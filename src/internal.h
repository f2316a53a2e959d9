/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The engine's structures. Lock order: see dontcache/engine.h.
 *
 * A page of an export is in one of these places, and `used` counts all of them:
 *
 *     stash (kept ready per CPU) -> reserved (a write is running) -> dirty (in a map)
 *                                                                 -> writeback (in a turn) -> gone
 *
 * Moving between them never changes `used`; only taking from and giving to the budget does. So the
 * limit is enforced in exactly one place, budget_take(), and nothing can slip past it.
 */
#ifndef DC_INTERNAL_H
#define DC_INTERNAL_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "dontcache/bandwidth.h"
#include "dontcache/dirty_map.h"
#include "dontcache/engine.h"
#include "dontcache/fault.h"
#include "dontcache/pacing.h"
#include "dontcache/share.h"
#include "fair.h"
#include "util.h"

#define DC_NS_PER_MS 1000000ULL
#define DC_NS_PER_S 1000000000ULL

enum { DC_FILE_MAGIC = 0x64634649, DC_EXPORT_MAGIC = 0x64634558, DC_DEVICE_MAGIC = 0x64634445 };

/* Why bytes are written back. */
enum dc_reason {
	DC_REASON_BACKGROUND,
	DC_REASON_EXPIRE,
	DC_REASON_LIMIT,
	DC_REASON_COMMIT,
	DC_REASON_SHUTDOWN,
};

/* Whole windows, as [first, end) in windows, ascending. */
struct dc_runs {
	struct {
		uint64_t first, end;
	} * run;
	uint32_t nr, cap;
};

/* One flusher turn: a range of one file, under writeback. */
struct dc_turn {
	struct dc_op op; /* first: the backend hands back ops */
	enum { DC_TURN_WRITEBACK, DC_TURN_DROP, DC_TURN_SYNC } kind;
	struct dc_file *file; /* referenced, its descriptor pinned */
	enum dc_reason reason;
	uint64_t id;	      /* per file, ascending */
	uint64_t pages;	      /* moved from dirty to writeback */
	uint64_t sync_seq;    /* DC_TURN_SYNC: write_seq when it began */
	struct dc_runs runs;  /* windows that the turn cleaned and that are to be dropped */
	struct dc_runs again; /* those of them that were not dropped whole */
	unsigned int tries;   /* at dropping */
	uint64_t due;	      /* ns: when the next one is */
	struct dc_watch watch;
	TAILQ_ENTRY(dc_turn) linger;
	LIST_ENTRY(dc_turn) link; /* dc_file.turns */
};

/* A client with uncommitted writes in a file. */
struct dc_writer {
	uint64_t client;
	uint64_t seq;		  /* write_seq of its last write that was not stable */
	int err;		  /* what it has not been told yet */
	uint64_t err_no, told_no; /* dc_file.errors of that, and when it was told last */
	uint64_t stable_no;	  /* the same, by a stable write */
	uint64_t told_at;	  /* ns: when it was told otherwise than by its COMMIT; 0: not */
};

struct dc_file {
	uint32_t magic;
	_Atomic uint32_t refs; /* 1 -> 0 only under the shard's lock */
	struct dc_export *exp; /* referenced */
	uint64_t hash;
	struct dc_file *hash_next; /* shard lock */
	uint8_t key_len;
	uint8_t key[DC_KEY_MAX];

	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t cond; /* a turn, a sync or a pass ended */
	int fd;
	int sync_fd; /* of stable writes: see stable.c; -1 more often than not */
	uint64_t sync_fd_turn, sync_fd_sync; /* turn_id and sync_no that were in flight when it was
					      * opened */
	uint32_t fd_users;		     /* of both */
	uint32_t turn_pins;		     /* of them: by turns, also by those that only drop */
	bool idle;			     /* on engine.idle */
	_Atomic uint64_t eof; /* bytes: where the file ends, as far as we know: a hint */
	bool unlinked;
	bool holds_dirty_ref, holds_sync_ref, holds_error_ref;

	struct dc_dirty_map map;

	uint32_t waiters; /* on cond */

	/* A pass visits everything that was dirty when it began, in ascending order. */
	uint64_t cursor, pass_end;
	uint64_t pass_no, passes_done;
	uint64_t pass_start_ns;

	LIST_HEAD(, dc_turn) turns; /* writebacks and syncs in flight, newest first */
	uint64_t turn_id;

	uint64_t write_seq; /* grows with each completed write */
	uint64_t edges;	    /* and this with each edge that an operation may have dirtied */
	uint64_t need_seq; /* write_seq of the last write that is not stable by itself; starts at 1,
			      * so that a file that was forgotten is never taken for synced */
	uint64_t synced_seq; /* write_seq as read before a successful fdatasync began */
	bool syncing;
	uint64_t sync_no;		  /* of the fdatasync that is running or ran last */
	STAILQ_HEAD(, dc_stable) stables; /* to be synced */
	struct dc_stable *leader;	  /* being synced, and who rides with it */
	struct dc_runs behind;		  /* windows to be dropped behind stable writes */
	_Atomic uint64_t errors;	  /* recorded, ever; grows under lock */
	int last_error;			  /* -errno of the last one */

	struct dc_writer *writers;
	uint32_t nr_writers, cap_writers, last_writer;

	/* under exp->lock */
	uint64_t dirtied_when; /* no claim is older; also read under lock */
	uint32_t heap_index;   /* DC_NOT_IN_HEAP or place in exp->heap */
	bool on_commit_list, on_quiet_list;
	uint64_t commit_pass; /* leaves the commit list when this pass is done */
	TAILQ_ENTRY(dc_file) commit_link, quiet_link;
	uint64_t quiet_since;

	/* under engine.idle_lock */
	TAILQ_ENTRY(dc_file) idle_link;
	uint64_t idle_since;
};

#define DC_NOT_IN_HEAP UINT32_MAX

/* What one CPU's writers touch. */
struct dc_slot {
	_Alignas(DC_CACHE_LINE) _Atomic uint64_t stash; /* pages taken from the budget, unused */
	_Atomic int64_t dirty;				/* pages; only the sum has a meaning */
	_Atomic uint64_t ctr[DC_NR_COUNTERS];
};

/* A connection with parked writes. */
struct dc_parker {
	void *connection;
	uint64_t bytes;
	uint32_t writes;
	bool held;
	LIST_ENTRY(dc_parker) hash;
};

#define DC_PARKER_BUCKETS 256

struct dc_export {
	uint32_t magic;
	uint32_t id;
	char *path;
	struct dc_engine *eng;
	struct dc_device *dev;
	_Atomic uint32_t refs; /* its files, and its owner */
	unsigned int nr_slots; /* a power of two */
	struct dc_slot *slots;

	/* read by every write, written by few; pages */
	_Alignas(DC_CACHE_LINE) _Atomic uint64_t limit;
	_Atomic uint64_t fast_cap; /* of `used`: where the fast path ends */
	_Atomic uint64_t hard_cap; /* of `used`: where even credit ends */
	_Atomic uint64_t near;	   /* of `used` */
	_Atomic uint64_t background, freerun, setpoint;
	_Atomic uint64_t usable; /* what of the limit is the export's for now: they follow from it */
	_Atomic uint64_t background_wanted; /* with all of the limit */
	_Atomic uint64_t min_pages, weight;
	_Atomic bool strict;
	_Atomic bool short_of;	    /* who waits waits for pages, not for credit */
	_Atomic bool awaiting;	    /* on dev->to_await or dev->awaited */
	_Atomic uint32_t contended; /* waiters; nonzero ends the fast path */
	_Atomic bool kicked;	    /* the export's one "there is work" bit */
	_Atomic bool draining;
	_Atomic bool ended;	      /* dc_export_free() was called */
	_Atomic uint64_t drain_until; /* ns: nothing is submitted that would end later */
	_Atomic uint64_t expire_ns, window_ms, parked_cap;
	_Atomic bool drop_behind, audit;
	_Atomic uint64_t error_generation;

	/* written at each refill of a stash, and by the flusher */
	_Alignas(DC_CACHE_LINE) _Atomic uint64_t used; /* pages; <= limit whenever it grows */
	_Atomic uint64_t writeback;		       /* pages */
	_Atomic uint64_t withheld;		       /* pages, of used: see pool.c */
	_Atomic uint64_t completed;		       /* pages, since the last balance */
	_Atomic uint64_t due;			       /* ns: when waiters are looked at again */

	_Alignas(DC_CACHE_LINE) pthread_mutex_t lock;
	/* under lock */
	struct dc_params params;
	struct dc_file **heap; /* by dirtied_when */
	uint32_t heap_nr, heap_cap;
	TAILQ_HEAD(, dc_file) commits; /* files that a COMMIT waits for */
	TAILQ_HEAD(, dc_file) quiet;   /* clean but unsynced, oldest first */
	struct dc_fair fair;	       /* parked writes */
	struct dc_pace {
		double credit;	/* pages; a write may leave it negative */
		double rate;	/* pages per second */
		uint64_t since; /* ns: until then credit was given */
	} pace;
	struct dc_rate done; /* what becomes clean */
	LIST_HEAD(, dc_parker) parker_hash[DC_PARKER_BUCKETS];
	uint32_t nr_parkers, nr_held;
	uint64_t parked_bytes;
	uint64_t last_error_log;
	uint32_t errors_unsaid; /* since then */

	_Atomic uint64_t nr_files, nr_unsynced, nr_owing; /* owing: an error */

	/* pool->lock */
	TAILQ_ENTRY(dc_export) pool_link;
	_Atomic uint64_t target; /* pages: what the grant moves towards */
	uint64_t due_pages;	 /* and that: its due */
	uint64_t overdue;	 /* pages beyond its grant, part of pool->granted: see pool.c */
	bool counted_strict;
	_Atomic bool borrowed;	/* also read without */
	_Atomic bool borrowing; /* on pool->borrowers; also read without */
	TAILQ_ENTRY(dc_export) borrow_link;
	uint64_t hot_until; /* ns */
	uint32_t share_index;
	double most; /* pages: its limit, or, if it is strict, its part */

	/* dev->lock */
	TAILQ_ENTRY(dc_export) kick_link;
	TAILQ_ENTRY(dc_export) await_link; /* on dev->awaited: the flusher's */
	bool detach, detached;
	/* flusher only, except for insertion under dev->lock */
	TAILQ_ENTRY(dc_export) dev_link;
	TAILQ_ENTRY(dc_export) active_link;
	_Atomic bool active; /* read by others as a hint */
	int64_t turn_credit; /* bytes that it may have written back before the next one's turn */
	uint32_t turns_in_flight;
	uint64_t errors_looked; /* ns: for those to be forgotten */
	uint64_t audit_said;	/* ns: when it last complained */
};

/* What clients wait for has a backend and a thread of its own: stable.c. */
struct dc_syncer {
	struct dc_backend *be;
	pthread_t thread;
	_Atomic bool stop, woken;
	uint32_t in_flight;   /* the thread's */
	pthread_mutex_t lock; /* a leaf */
	STAILQ_HEAD(, dc_stable) queue;
};

struct dc_device {
	uint32_t magic;
	uint64_t id;
	struct dc_engine *eng;
	struct dc_backend *be;
	struct dc_executor *exec; /* NULL: waiters run where they are released */
	pthread_t thread;
	bool threaded;
	_Atomic bool stop;
	_Atomic bool woken;	 /* the flusher's "there is work" bit: only 0 -> 1 wakes it */
	_Atomic bool deep_sleep; /* waits without a timeout */

	pthread_mutex_t lock;
	/* under lock */
	pthread_cond_t cond; /* an export was detached */
	TAILQ_HEAD(, dc_export) kicked;
	TAILQ_HEAD(dc_await_list, dc_export) to_await; /* on their way to awaited */
	TAILQ_HEAD(, dc_export) exports;
	uint32_t nr_detach;
	TAILQ_HEAD(, dc_turn) handed_over; /* on their way to lingering */
	bool no_syncer;			   /* it could not be made */
	uint64_t said_refused;		   /* ns: that operations are refused was logged */
	struct dc_fault *fault;		   /* NULL: none can be injected */

	pthread_mutex_t watch_lock; /* a leaf */
	TAILQ_HEAD(, dc_watch) watched;
	uint32_t nr_watched;
	uint64_t said_stuck; /* the flusher's, as is stuck */
	bool stuck;

	struct dc_syncer *_Atomic syncer; /* made at the first stable write; then for good */
	struct dc_backend *(*make)(int *err);
	struct dc_device *next; /* engine.lock */
	uint32_t pool_index;	/* pool->lock */

	/* the flusher's own */
	TAILQ_HEAD(, dc_export) active;
	struct dc_await_list awaited; /* with parked writes */
	_Atomic uint32_t nr_awaited;
	struct dc_bandwidth bw;
	uint64_t in_flight; /* pages under writeback by turns */
	uint32_t syncs_in_flight;
	uint64_t next_tick, last_work;
	TAILQ_HEAD(, dc_turn) lingering; /* waiting to be dropped again */
	LIST_HEAD(, dc_turn) free_turns;
	/* copies for readers */
	_Atomic uint64_t bandwidth_now, in_flight_now;
};

#define DC_SHARDS 64

struct dc_shard {
	_Alignas(DC_CACHE_LINE) pthread_mutex_t lock;
	struct dc_file **bucket;
	uint32_t nr, cap;
};

struct dc_executor;
struct dc_orphan;

/* The server's budget: pool.c. */
struct dc_pool {
	pthread_mutex_t lock;
	/* under lock; pages */
	uint64_t total, granted;
	uint64_t left;	     /* of granted: dirty when its export ended undrained */
	uint64_t left_until; /* ns: then the kernel has written it */
	uint64_t limits;     /* sum of those of all exports */
	TAILQ_HEAD(, dc_export) exports;
	TAILQ_HEAD(, dc_export) borrowers; /* that wait for pages, the first to come first */
	uint32_t nr_exports, nr_strict;
	bool tight; /* at the last balance the limits exceeded the total */
	uint64_t last_balance;
	_Atomic uint64_t next_balance; /* ns; also read without */
	struct dc_pool_device {
		struct dc_device *dev;
		double completions; /* pages, ageing */
		uint64_t granted;   /* to its exports, with what is overdue */
		uint32_t exports;
		double min, want, limits;
		uint32_t first, nr; /* of its exports among all */
		double rest;
		struct dc_share share;
	} * device;
	uint32_t nr_devices;
};

struct dc_engine {
	const struct dc_host_ops *ops;
	void *host;
	struct dc_engine_options opt;
	struct dc_shard shard[DC_SHARDS];
	pthread_mutex_t lock;
	struct dc_device *devices; /* under lock */

	pthread_mutex_t idle_lock;
	TAILQ_HEAD(dc_idle_list, dc_file) idle; /* open, clean and unused, oldest first */
	uint32_t nr_idle;
	_Atomic uint32_t nr_open;  /* descriptors of our own */
	_Atomic uint32_t max_open; /* opt.max_open_files, or less for a while: dc_fd_shed() */
	_Atomic uint64_t shed_at;  /* ns */

	_Atomic bool said_no_uring;

	struct dc_pool pool;

	pthread_mutex_t orphan_lock;	 /* a leaf */
	TAILQ_HEAD(, dc_orphan) orphans; /* oldest first */
	_Atomic uint32_t nr_orphans;
};

/* ---- util ---- */

static inline uint64_t dc_now(struct dc_engine *eng)
{
	return eng->ops->now_ns(eng->host);
}

void dc_log(struct dc_engine *eng, enum dc_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- admit.c ---- */

struct dc_slot *dc_slot(struct dc_export *exp);

static inline void dc_count(struct dc_export *exp, enum dc_counter id, uint64_t n)
{
	atomic_fetch_add_explicit(&dc_slot(exp)->ctr[id], n, memory_order_relaxed);
}

/** Pages in dirty maps: the exact sum. */
uint64_t dc_dirty_pages(struct dc_export *exp);

/** Takes back what the slots keep ready, so that the last pages of a budget are usable. */
void dc_sweep(struct dc_export *exp);

/** Takes pages of the budget if `used` then exceeds neither its limit nor `cap`: the only place where it
 * grows. */
bool dc_budget_take(struct dc_export *exp, uint64_t pages, uint64_t cap);
void dc_budget_give(struct dc_export *exp, uint64_t pages);

/** The levels that follow from limit, grant and due. Any lock may be held. */
void dc_levels_update(struct dc_export *exp);

/** Lets in what is due of the device's exports. Flusher only, nothing locked. */
void dc_pace_due(struct dc_device *dev, uint64_t now);
/** How long the flusher may wait for that, at most `timeout` ns. */
uint64_t dc_pace_timeout(const struct dc_device *dev, uint64_t now, uint64_t timeout);

/** Pages leave the budget: parked writes are admitted. No lock may be held. */
void dc_release(struct dc_export *exp, uint64_t pages);

/** Admits what fits (or, when draining, cancels everything). No lock may be held. */
void dc_dispatch(struct dc_export *exp);

/* ---- pool.c; pool.lock is a leaf ---- */

/** The export is made, with its limit set: gets its first grant. */
void dc_pool_join(struct dc_export *exp);
/** `left`: pages that were dirty and that nobody counts any more. */
void dc_pool_leave(struct dc_export *exp, uint64_t left);
/** A new limit, pages. */
void dc_pool_limit(struct dc_export *exp, uint64_t limit);
/** The export came up against its grant: gets more if there is any to be had now. */
bool dc_pool_borrow(struct dc_export *exp, uint64_t pages);
/** It has a part of its own by now: out of the way of those that wait to borrow. */
void dc_pool_need_not(struct dc_export *exp);
/** Gives back what was borrowed, as far as nobody uses it. */
void dc_pool_repay(struct dc_export *exp);
void dc_pool_strict(struct dc_export *exp, bool strict);
/** The last page of an export that left is gone. */
void dc_pool_gone(struct dc_export *exp);
/** Moves grants towards what is due, if it is time. */
void dc_pool_balance(struct dc_engine *eng, uint64_t now);

/* ---- executor.c ---- */

struct dc_executor *dc_executor_new(unsigned int threads);
void dc_executor_free(struct dc_executor *ex);
/** Runs a list of waiters, linked by next, not empty; ex may be NULL: in the caller. */
void dc_executor_run(struct dc_executor *ex, struct dc_waiter *list);
/** The calling thread is about to wait for a device, and has done so: if it is an executor, another
 * takes its place meanwhile. */
void dc_executor_blocks(void);
void dc_executor_goes_on(void);

/* ---- export.c ---- */

void dc_export_put(struct dc_export *exp);

/* ---- file.c, file_table.c, file_errors.c ---- */

void dc_file_hold(struct dc_file *file);
/** Wakes those that wait for the file; file->lock held. */
void dc_file_wake_locked(struct dc_file *file);
/** Ends every claim, closes the descriptor, drops what the engine itself holds: the export ends. */
void dc_file_forget(struct dc_file *file);
/** Has the last link gone since nobody looked? Answers true once: what is written to such a file
 * later is written back as ever. file->lock held. */
bool dc_nameless_locked(struct dc_file *file);
/** Lets the cap grow back. */
void dc_fd_recover(struct dc_engine *eng, uint64_t now);
/** Are all descriptors in use that we may have? Then files are cleaned for theirs. */
bool dc_fd_pressed(const struct dc_engine *eng);
/** The last link is gone: ends all claims. Returns references to put, and in *pages what has
 * to be released, once the lock is free. file->lock held. */
int dc_unlinked_locked(struct dc_file *file, uint64_t *pages);
/** Closes the file's descriptor; file->lock held, or nobody else knows the file. */
void dc_fd_close(struct dc_file *file);
/** The pinned descriptor is not needed any more; file->lock held. */
void dc_fd_unpin_locked(struct dc_file *file);
/** Closes descriptors of files idle since before `older_than`, and idle ones, the oldest first, while
 * more than `keep` are open.
 * @return true if any idle descriptor is left. */
bool dc_idle_trim(struct dc_engine *eng, uint64_t older_than, uint32_t keep);
/** The file is in use, or ends: off the list of idle descriptors. file->lock held. */
void dc_idle_remove_locked(struct dc_file *file);
/** A further entry in file->writers, not initialised; file->lock held. */
struct dc_writer *dc_writer_new_locked(struct dc_file *file);
/** This writer will be told of `err`; file->lock held. */
void dc_owe_locked(struct dc_file *file, struct dc_writer *w, int err);
/** Every client with uncommitted writes will be told `err` (-errno). file->lock held. */
void dc_error_locked(struct dc_file *file, int err);
/** Forgets errors that were told through another connection long ago. Flusher only, nothing of files
 * locked. */
void dc_errors_expire(struct dc_export *exp, uint64_t now);
/** What `client` must be told by a COMMIT or stable write, once by each; 0 if nothing. file->lock held. */
int dc_told_locked(struct dc_file *file, uint64_t client, bool by_commit);
/** synced_seq advanced or the file is not worth syncing: drops references that hung on it.
 * Returns references to put once the lock is free. file->lock held. */
int dc_settle_locked(struct dc_file *file);
/** Puts n references. */
void dc_file_puts(struct dc_file *file, int n);
/** Moves the file to its export's quiet list or the idle list if it has come to rest;
 * file->lock held. */
void dc_file_rest_locked(struct dc_file *file);

/** Waits on file->cond; file->lock held. */
void dc_file_wait_locked(struct dc_file *file);

/* ---- watchdog.c ---- */

/** From here to dc_watch_end() a device is being waited for. */
void dc_watch_begin(struct dc_device *dev, struct dc_watch *w, struct dc_file *file,
		    const char *what, uint64_t offset, uint64_t len);
void dc_watch_end(struct dc_device *dev, struct dc_watch *w);
/** Says what is stuck. Flusher only, nothing of exports or files locked. Returns true while anything is
 * watched. */
bool dc_watch_look(struct dc_device *dev, uint64_t now);

/* ---- orphans.c ---- */

/** The file's export ends while clients are owed an error: remembered for the file's next export.
 * file->lock held. */
void dc_orphan_leave_locked(struct dc_file *file);
/** Is anybody owed an error of this new file, from an export that has ended? Nobody else knows the file. */
void dc_orphan_adopt(struct dc_file *file);
void dc_orphans_free(struct dc_engine *eng);

/* ---- audit.c ---- */

/** For dc_audit(): do the file's parts agree? file->lock held, between two changes. */
bool dc_file_is_sound_locked(const struct dc_file *file);
/** And is the heap one? exp->lock held. */
bool dc_heap_is_sound(const struct dc_export *exp);
/** The file is about to get this descriptor: what is dirty now is not ours (a server that was killed left it)
 * and is written back first. Nothing locked; blocks. */
void dc_audit_begin(struct dc_file *file, int fd);
/** Compares the export's maps with what the kernel counts dirty. Flusher only, nothing locked. */
void dc_audit_export(struct dc_export *exp);

/* ---- commit.c ---- */

/** dc_commit(), which also fails if an error was recorded since `errors` was read; by_commit false: for a
 * stable write. */
int dc_commit_since(struct dc_file *file, uint64_t client, uint64_t offset, uint64_t len,
		    uint64_t errors, bool by_commit);
/** Waits until every turn up to `id` has been reaped. file->lock held, and dropped on the way. */
void dc_reap_locked(struct dc_file *file, uint64_t id);

/* ---- stable.c ---- */

/** Makes the device's sync thread if it has none. Nothing locked. */
void dc_syncer_wanted(struct dc_device *dev);
void dc_syncer_free(struct dc_syncer *sy);
/** Would making more than this range durable cost much, and is there a way to do less? file->lock
 * held, descriptor pinned. */
bool dc_range_pays_locked(struct dc_file *file, uint64_t offset, uint64_t len);
/** COMMIT of a range: dc_range_pays_locked() said so. file->lock held, and dropped on the way. */
int dc_commit_range_locked(struct dc_file *file, uint64_t client, uint64_t offset, uint64_t len,
			   uint64_t errors, int *puts);

/* ---- inflate.c ---- */

/* A write of DC_MAX_WRITE touches two windows at most; a larger one may be asked about in part. */
#define DC_INFLATION_MAX 4

struct dc_inflation {
	uint64_t first; /* window */
	uint32_t nr;
	uint64_t dirty[DC_INFLATION_MAX]; /* pages of each that the kernel counts dirty */
};

/** Asks the kernel about the windows that a write touched. Nothing locked, descriptor pinned. */
void dc_inflation_ask(struct dc_file *file, uint64_t offset, uint64_t len, struct dc_inflation *in);
/** Claims what the kernel counts beyond our claims, up to `max` pages; file->lock held. */
uint64_t dc_inflation_claim_locked(struct dc_file *file, const struct dc_inflation *in,
				   uint64_t max);

/* ---- file_table.c ---- */

/** Calls `each` for every file of the export, referenced, nothing locked; not for those that come or
 * go meanwhile. */
void dc_files_each(struct dc_export *exp, void (*each)(struct dc_file *file, void *arg), void *arg);

/* ---- engine.c ---- */

/** One more backend for the device, as its owner wants them. */
struct dc_backend *dc_backend_make(struct dc_device *dev, int *err);

/* ---- flusher.c ---- */

/** The operation never ran: the kernel or a filter refuses it. No device answers so. */
static inline bool dc_refused(int res)
{
	return res == -ENOSYS || res == -EPERM || res == -ESPIPE || res == -EBADF ||
	       res == -ECANCELED || res == -EINTR;
}

/** Either that, or the device's answer, with the data gone. */
static inline bool dc_ambiguous(int res)
{
	return res == -EINVAL || res == -EOPNOTSUPP || res == -EAGAIN || res == -ENOMEM;
}

void *dc_flusher_thread(void *arg);
/** Sets the export's kick bit; only 0 -> 1 wakes the flusher. */
void dc_kick(struct dc_export *exp);
void dc_device_wake(struct dc_device *dev);

/** The end of a turn: unpins, settles, frees. Flusher only. */
void dc_turn_end(struct dc_device *dev, struct dc_turn *turn);

/* ---- drop.c ---- */

/** Submits the drop of the turn's next windows; ends the turn after the last. Flusher only. */
void dc_drop_next(struct dc_device *dev, struct dc_turn *turn);
void dc_drop_done(struct dc_device *dev, struct dc_turn *turn);
/** Tries again what lingered long enough. Flusher only. */
void dc_drop_due(struct dc_device *dev, uint64_t now);
/** How long the flusher may wait, at most `timeout` ns. */
uint64_t dc_drop_timeout(const struct dc_device *dev, uint64_t timeout);
/** Drops in the caller's thread, and leaves what stays behind to the flusher. Descriptor pinned;
 * file->lock held, and dropped on the way. */
void dc_drop_now_locked(struct dc_file *file, struct dc_runs *runs);
/** Leaves it all to the flusher; empties *runs. Descriptor pinned; file->lock held. */
void dc_drop_later_locked(struct dc_file *file, struct dc_runs *runs);

/* ---- turn.c ---- */

/** Adds windows [first, end) behind those that are there. */
void dc_runs_add(struct dc_runs *runs, uint64_t first, uint64_t end);

struct dc_take {
	uint64_t first, end; /* pages */
	uint64_t pages;	     /* were dirty */
};

/** Takes up to `max` dirty pages at the cursor out of the map, noting the windows. file->lock held.
 * @return false if nothing was dirty. */
bool dc_take_locked(struct dc_file *file, uint64_t max, uint64_t now, struct dc_take *take,
		    struct dc_runs *runs);
/** Takes everything dirty, and with it ends the pass; file->lock held. */
bool dc_take_all_locked(struct dc_file *file, struct dc_take *take, struct dc_runs *runs);
void dc_pass_begin_locked(struct dc_file *file, uint64_t now);
/** Takes one range of windows off runs, leaving out those that were dirtied again. file->lock held.
 * @return false when none is left. */
bool dc_runs_next_locked(struct dc_file *file, struct dc_runs *runs, uint64_t *first,
			 uint64_t *end);

/* heap of dirty files; exp->lock held */
void dc_heap_insert(struct dc_export *exp, struct dc_file *file);
void dc_heap_remove(struct dc_export *exp, struct dc_file *file);
void dc_heap_update(struct dc_export *exp, struct dc_file *file, uint64_t dirtied_when);

/** The map became empty: off the heap. Returns references to put later. file->lock held. */
int dc_became_clean_locked(struct dc_file *file);
/** The map got its first page: onto the heap. file->lock held. */
void dc_became_dirty_locked(struct dc_file *file, uint64_t now);
/** Counts pages as under writeback instead of dirty. exp->lock not held. */
void dc_count_writeback(struct dc_export *exp, uint64_t pages);
/** They are not any more; `again` of them are dirty again. To be released by the caller. exp->lock not
 * held. */
void dc_count_cleaned(struct dc_export *exp, uint64_t pages, uint64_t again);

#endif
