/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The plugin: MDCACHE -> DONTCACHE -> VFS (or another local sub-FSAL).
 *
 *   module.c   registering, making and updating exports, the engine's clock and log
 *   conf.c     the export block: names, lines, ranges
 *   export.c   export operations and an export's life time
 *   handle.c   object operations that only pass down
 *   write.c    write2, commit2 and what shrinks files: where the engine comes in
 *   request.c  a write that another thread carries out: parked
 *   gate.c     a connection that is not read from
 *   ownfd.c    a file descriptor of our own for the sub-FSAL's file
 *   control.c  the Unix socket that answers with counters
 *
 * Rule for everything here: whenever the sub-FSAL is called, op_ctx->fsal_export is the sub-export;
 * FSAL_CEPH and FSAL_GLUSTER crash otherwise, even in release().
 */
#ifndef FSAL_DONTCACHE_H
#define FSAL_DONTCACHE_H

#include "compat.h"

#include "dontcache/engine.h"
#include "dontcache/fault.h"

struct dcf_export {
	struct fsal_export export;
	struct dc_export *budget; /* NULL in IO_Mode buffered */
	struct dc_params params;  /* what is in force */
	int root_fd;		  /* any descriptor on the file system, for open_by_handle_at(2) */
	dev_t dev;		  /* and that file system */
	uint64_t verifier;	  /* of this instance of the export; random */
	bool said_no_fd;	  /* that they cannot was logged */
	bool faulty;		  /* its device can be told to fail */
	struct glist_head live;	  /* dcf_obj.live, under dcf.live_lock */
	struct glist_head all;	  /* on dcf.exports, under dcf.live_lock */
};

/* An object's file in another export than the one that wrote to it first. */
struct dcf_alias {
	struct dcf_alias *next;
	struct dc_file *file;
};

struct dcf_obj {
	struct fsal_obj_handle handle;
	struct fsal_obj_handle *sub; /* NULL once its export was released under it */
	struct dc_file *file;	     /* atomic; got at the first write or COMMIT */
	struct dcf_alias *aliases;   /* of other exports; under dcf.live_lock */
	struct glist_head live;
};

struct dcf_module {
	struct fsal_module module;
	struct fsal_obj_ops obj_ops;
	struct dc_engine *engine;
	struct dc_server_params params; /* of the server, in force; under live_lock */
	pthread_mutex_t live_lock;	/* a leaf */
	struct glist_head exports;
};

extern struct dcf_module dcf;

static inline struct dcf_export *dcf_export(struct fsal_export *x)
{
	return container_of(x, struct dcf_export, export);
}

static inline struct dcf_obj *dcf_obj(struct fsal_obj_handle *h)
{
	return container_of(h, struct dcf_obj, handle);
}

/* The export that the current operation came in through. */
static inline struct dcf_export *dcf_current(void)
{
	return dcf_export(op_ctx->fsal_export);
}

/* Runs a statement with the sub-export in place. */
#define DCF_SUB(e, stmt)                                                                           \
	do {                                                                                       \
		op_ctx->fsal_export = (e)->export.sub_export;                                      \
		stmt;                                                                              \
		op_ctx->fsal_export = &(e)->export;                                                \
	} while (0)

/* Runs `status = call` so; if the process has no descriptor left, once more after ours have been given
 * back, and then "try later": that is not an error of the file. */
#define DCF_TRY(e, status, call)                                                                   \
	do {                                                                                       \
		DCF_SUB(e, (status) = (call));                                                     \
		if (dcf_no_fd(status)) {                                                           \
			dc_fd_shed(dcf.engine);                                                    \
			DCF_SUB(e, (status) = (call));                                             \
			if (dcf_no_fd(status))                                                     \
				(status) = fsalstat(ERR_FSAL_DELAY, 0);                            \
		}                                                                                  \
	} while (0)

static inline bool dcf_no_fd(fsal_status_t st)
{
	return FSAL_IS_ERROR(st) && (st.minor == EMFILE || st.minor == ENFILE) && dcf.engine;
}

/* Is that what a failed writeback looks like? Everything else (a file that is gone, a permission, "try later")
 * says nothing about data. */
static inline bool dcf_lost_data(fsal_status_t st)
{
	switch (st.major) {
	case ERR_FSAL_IO:
	case ERR_FSAL_NXIO:
	case ERR_FSAL_NOSPC:
	case ERR_FSAL_DQUOT:
	case ERR_FSAL_ROFS:
	case ERR_FSAL_FBIG:
	case ERR_FSAL_SERVERFAULT:
	case ERR_FSAL_NO_DATA: /* a medium error */
		return true;
	case ERR_FSAL_DELAY: /* of a device's timeout; our own has no errno */
		return st.minor != 0;
	default:
		return false;
	}
}

/* Records what a sub-FSAL's sync or close told of the file; NULL: it is not ours to account. */
static inline void dcf_note_lost(struct dc_file *file, fsal_status_t st)
{
	if (file && dcf_lost_data(st))
		dc_file_error(file, st.minor ? -abs(st.minor) : -EIO);
}

/* module.c */
MODULE_INIT void dcf_init(void);
MODULE_FINI void dcf_fini(void);
uint64_t dcf_now(void *unused);

/* conf.c */

/** Reads our parameters from the FSAL block `node` over the defaults, logging every problem with
 * file, line, value and allowed range. Returns the number of errors; *p is then not to be used. */
int dcf_conf_read(void *node, const char *path, struct dc_params *p);
/** Reads the server's parameters from the DONTCACHE block of the tree that `node` is in, over *p, logging
 * every problem. *there: is there such a block? Returns the number of errors; *p is then not to be used. */
int dcf_conf_server(void *node, struct dc_server_params *p, bool *there);
/** Reads Fault_Injection into spec: "" if it is not there. Returns the number of errors, logged. */
int dcf_conf_fault(void *node, const char *path, char *spec, size_t len);
#define DCF_FAULT_MAX 256
/** Fills in, once, the items that Ganesha's own parser may pass over, since dcf_conf_read() reads them. */
void dcf_conf_items(void);
extern struct config_item dcf_server_items[];
struct dcf_conf {
	struct subfsal_args subfsal;
};
extern struct config_block dcf_export_block;
struct dcf_server_conf {
	char *control_socket;
};

/* export.c */
void dcf_export_ops_init(struct export_ops *ops);
/** Opens the export's root and makes its budget. */
int dcf_export_start(struct dcf_export *e, const char *path, const struct dc_params *p,
		     const char *fault);
/** Sets the fault rules of the export's device, and says so loudly. */
bool dcf_fault(struct dcf_export *e, const char *spec, char *msg);

/* handle.c */
void dcf_obj_ops_init(struct fsal_obj_ops *ops);
struct fsal_obj_handle *dcf_wrap(struct dcf_export *e, struct fsal_obj_handle *sub);

/* write.c */
void dcf_write_ops_init(struct fsal_obj_ops *ops);
struct dcf_request;
/** Carries out a write for which `pages` are reserved; op_ctx must be the caller's. Takes over `req`. */
void dcf_write_admitted(struct dcf_export *e, struct fsal_obj_handle *h, bool bypass,
			fsal_async_cb done_cb, struct fsal_io_arg *io, void *caller_arg,
			uint64_t pages, uint64_t client, struct dcf_request *req);
/** What the engine calls this caller: DC_CLIENT() of its address and port. */
uint64_t dcf_client_id(void);
/** The file behind a handle, referenced by the handle; NULL for what is not a regular file or has
 * no usable key. */
struct dc_file *dcf_file(struct dcf_export *e, struct dcf_obj *o);

/* request.c */

struct dcf_request {
	struct dc_waiter waiter; /* while parked */
	struct dc_stable stable; /* while being synced */
	struct dcf_export *e;
	struct fsal_obj_handle *h;
	bool bypass;
	fsal_async_cb done_cb;
	struct fsal_io_arg *io;
	void *caller_arg;
	uint64_t client;
	/* of the request's op context */
	struct gsh_export *ctx_export;
	struct user_cred creds;
	struct export_perms perms;
	struct gsh_client *gsh_client;
	sockaddr_t *caller_addr;
	uint32_t nfs_vers, nfs_minorvers;
};

/** What another thread needs to carry out this write; from the current op context. */
struct dcf_request *dcf_request_new(struct dcf_export *e, struct fsal_obj_handle *h, bool bypass,
				    fsal_async_cb done_cb, struct fsal_io_arg *io,
				    void *caller_arg);
void dcf_request_free(struct dcf_request *r);
/** Makes *ctx the op context, as the request's; end it with release_op_context(). */
void dcf_request_context(struct dcf_request *r, struct req_op_context *ctx);

/** Parks a write again that was admitted for too few pages; `pages` must be the most it can need. Nothing is
 * reserved for it. Takes over `r`. */
void dcf_park_again(struct dcf_request *r, uint64_t pages);

/** Parks a write; answers it by itself if it cannot be. */
void dcf_park(struct dcf_export *e, struct fsal_obj_handle *h, bool bypass, fsal_async_cb done_cb,
	      struct fsal_io_arg *io, void *caller_arg, uint64_t pages, size_t bytes);

/* gate.c */

/** The connection of the current request, NULL if it cannot be told. */
void *dcf_gate_connection(void);
/** Stops reading from a connection, until dcf_gate_open(). */
void dcf_gate_hold(void *connection);
/** Gives the current request's connection a gate, before it writes. */
void dcf_gate_install(void);
/** The current request is about to wait for a device, or is no write: what comes behind it on its
 * connection may be received. */
void dcf_gate_let_go(void);
/** The current request is a write; near_limit: receive one request at a time for a second. */
void dcf_gate_write(bool near_limit);
void dcf_gate_open(void *unused, void *connection);

/* ownfd.c */

/** A descriptor of our own (O_RDONLY) for the file behind a sub-FSAL handle, or -errno. */
int dcf_own_fd(struct dcf_export *e, struct fsal_obj_handle *sub);

/* control.c */
int dcf_control_start(const char *path);
void dcf_control_stop(void);

#endif
