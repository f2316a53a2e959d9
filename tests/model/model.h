/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The world that the model test runs the engine in, and what it believes about it.
 *
 * The world is small and complete: clients that write, files whose page cache and device are known
 * page by page, one device whose operations start, fail and end when the sequence says so, and
 * committers that stop where they would block. Everything happens in one thread at a time, so that
 * a sequence of operations means the same each time it is run.
 *
 * Per page the world knows versions, numbered in the order of writing over all files:
 *
 *     cache   what the page cache holds            dirty   ... and whether the device lacks it
 *     sent    what the device was given            safe    what a flush of the device made durable
 *     lost    what an I/O error took               gone    what truncation made meaningless
 *
 * An I/O error behaves as in Linux: the page is clean afterwards, its new content lost, and the
 * file has one error that the first to ask is told: a writeback that ends, or fdatasync.
 */
#ifndef MODEL_H
#define MODEL_H

#include <errno.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "internal.h"

#define NR_SLOTS 3 /* names; what is behind one changes when it is unlinked */
#define NR_CLIENTS 3
#define NR_PAGES 6144 /* of a file: 12 windows */
#define NR_COMMITTERS 3
#define NR_WRITES 4 /* at once between admission and record */
#define NR_FDS 4096

typedef uint32_t version;

/* What the world knows of one file; it lives until the sequence ends. */
struct mfile {
	unsigned int nr; /* also its key */
	char path[96];
	struct dc_file *file; /* our reference ("Ganesha's handle"), or NULL */
	bool dead;	      /* unlinked: nobody is promised anything any more */
	bool cancelled;	      /* the engine has found out, and ended its claims */
	bool known;	      /* the engine's table has it */

	version cache[NR_PAGES], sent[NR_PAGES], safe[NR_PAGES], lost[NR_PAGES], gone[NR_PAGES];
	version recorded[NR_PAGES];	       /* last recorded write */
	version of[NR_CLIENTS][NR_PAGES];      /* each client's last recorded write */
	uint32_t of_seq[NR_CLIENTS][NR_PAGES]; /* and which of the file's records that was */
	bool dirty[NR_PAGES];
	unsigned int under_wb[NR_PAGES]; /* flights that the page is in: dirty again, it is skipped
					  * by those that are not strict */
	bool claim[NR_PAGES];
	uint64_t claimed_at[NR_PAGES];
	unsigned int unrecorded[NR_PAGES]; /* writes that are in the cache and not recorded */
	uint64_t nr_claims;

	/* The kernel's error, as errseq has it: a file counts events, each descriptor those it was
	 * told of; a new one is told of an event that nobody was told of yet. */
	unsigned int err_events;
	bool err_seen;
	int last_err;
	uint64_t lost_at[NR_PAGES];	 /* when */
	uint64_t record_seq;		 /* recorded writes, counted */
	uint64_t need_seq;		 /* of the last that is not stable by itself */
	uint64_t covered;		 /* ... of which a successful sync knew when it began */
	uint64_t client_seq[NR_CLIENTS]; /* record_seq of the last one */
	uint64_t must_seq[NR_CLIENTS];	 /* its first record that an error took and that it was not
					* told of; 0: none */
	uint64_t should_seq[NR_CLIENTS]; /* its last record when the engine was given an error that
					  * it was not told of; 0: none, or it had nothing uncommitted */
	uint64_t errors;		 /* that the engine was given */
	uint64_t told[NR_CLIENTS], allowed[NR_CLIENTS]; /* times it was told, and may have been */
	uint64_t told_at[NR_CLIENTS];
	unsigned int again[NR_CLIENTS]; /* writes that an error overtook before they were recorded:
					 * their client is told once more, for them */
};

/* An operation that the engine submitted; or (op NULL) writeback that the kernel began itself. */
struct mop {
	struct dc_op *op;
	struct mfile *mf;
	uint64_t pages;	     /* claims it took over */
	uint64_t first, end; /* pages */
	bool started, finished, refused;
	bool *flight;  /* pages that it has under writeback */
	version *snap; /* DC_OP_SYNC: what was sent when it started */
	uint64_t seq;  /* and record_seq */
	struct mop *next;
};

enum write_state { W_NONE, W_PARKED, W_ADMITTED, W_WRITTEN, W_SYNCING };

struct mwrite {
	enum write_state state;
	struct mfile *mf;
	unsigned int client;
	uint64_t first, pages;	    /* what it will write */
	uint64_t offset, len, kept; /* what it really wrote: bytes, pages */
	uint64_t reserved, inflate;
	uint64_t errors; /* recorded when it began */
	version ver;
	bool stable;
	struct dc_waiter w;
	struct dc_stable s;
};

enum co_state { CO_FREE, CO_READY, CO_WAITING, CO_SYNCING, CO_DONE };

/* A committer: a thread that runs only when it is its turn. */
struct committer {
	pthread_t thread;
	sem_t go, back;
	enum co_state state;
	bool quit;
	struct mfile *mf;
	unsigned int client;
	uint64_t offset, len;
	version *at_call; /* recorded[] when it was called */
	version *own;	  /* and what was its client's of it */
	uint64_t seq_at_call;
	int res;
	uint64_t take; /* claims that its sync took over */
};

struct world {
	struct dc_backend be; /* first */
	uint64_t now, rng;    /* rng: for which slot is used, only */
	struct dc_engine *eng;
	struct dc_device *dev;
	struct dc_export *exp;
	struct dc_params params;
	struct mfile **files;
	unsigned int nr_files;
	struct mfile *slot[NR_SLOTS];
	struct mfile *by_fd[NR_FDS];
	unsigned int cursor[NR_FDS]; /* err_events that the descriptor was told of */
	uint64_t event;		     /* counts losses and tellings */
	struct mop *ops;	     /* in the order of submission */
	struct dc_op *done;
	struct mwrite write[NR_WRITES];
	struct committer *running; /* NULL: the main thread */
	version ver;
	uint64_t dice;	  /* of the operation being run: whether I/O fails and how */
	bool automatic;	  /* operations start and end at once, without errors */
	bool strict;	  /* also lose pages of writes that are not recorded yet */
	bool inflating;	  /* cachestat is asked about the folios of a write */
	uint64_t flights; /* claims under writeback, by the reference */
	uint64_t last_used;
	uint64_t inflate_to; /* what cachestat says is dirty in a window; 0: nothing special */
	bool verbose;
};

extern struct world *W;
extern struct committer committers[NR_COMMITTERS];
extern char model_dir[64];

/* ---- world.c ---- */

void world_new(uint64_t seed, bool strict, bool verbose);
void world_free(void);
struct mfile *mfile_new(void);
void mfile_open(struct mfile *mf); /* references it and gives it a descriptor, pinned */
void claim_clear(struct mfile *mf, uint64_t first, uint64_t last);
uint64_t claim_set(struct mfile *mf, uint64_t first, uint64_t last);
void cache_write(struct mfile *mf, uint64_t first, uint64_t pages, version ver);
/** Has the engine found out that the file is gone, and ended its claims? */
void note_cancelled(struct mfile *mf, const struct dc_file *file);
void kernel_flush(struct mfile *mf, uint64_t first, uint64_t end);
/** What the device had, but not for good, is lost; the file has an error. */
void device_forgets(struct mfile *mf);
/** What cachestat(2) counts in [first, end). */
uint64_t dirty_in(const struct mfile *mf, uint64_t first, uint64_t end);
void op_start(struct mop *m);
void op_finish(struct mop *m);
void co_resume(struct committer *co);
void pool_start(void);
void pool_stop(void);

/* ---- check.c ---- */

void model_fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
/** Everything that must hold between two operations. */
void check_step(void);
/** A COMMIT has returned. */
void check_commit(struct committer *co);
/** A stable write was answered. */
void check_stable(struct mwrite *w, int res);
/** An I/O error was handed to the engine. */
void error_given(struct mfile *mf);
/** All is over: whatever was promised must have been kept. */
void check_end(void);

#define check(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond))                                                                       \
			model_fail(__VA_ARGS__);                                                   \
	} while (0)

#endif
