/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Writes, reads, COMMIT, and what shrinks files: where Ganesha's operations meet the engine.
 *
 *   write2:  admit -> (or request.c) -> pin -> the sub-FSAL's write2 -> record -> reply
 *                                                                            -> sync -> reply
 *
 * The sub-FSAL always writes as UNSTABLE: its own stable write would sync the whole file in a way
 * the engine could not share or account. A stable write is made stable afterwards, by the engine,
 * its own range only, while no worker waits; and it fails if that fails.
 *
 * What shrinks a file notes the file's write sequence first and tells the engine after the sub-FSAL
 * did it; if anything was written meanwhile, the claims simply stay (R4) and end by being flushed.
 */
#include "fsal_dontcache.h"

typedef struct fsal_obj_handle obj_t;

#define SUB(h) (dcf_obj(h)->sub)

/* What a sub-FSAL's asynchronous call needs until its callback. Kept per thread for the next one,
 * so that a write allocates nothing. */
struct relay {
	struct relay *next;
	struct dcf_export *e;
	obj_t *h;
	fsal_async_cb done_cb;
	void *caller_arg;
	/* of a write */
	struct dc_file *file; /* referenced by the relay; NULL: not accounted */
	uint64_t pages;
	uint64_t client;
	uint64_t errors; /* recorded in the file before the write */
	size_t full_len; /* of a write that an injected fault made short */
	bool pinned;
	bool stable;
	struct dcf_request *req; /* a stable write's: another thread will answer it */
};

#define RELAYS_KEPT 8

static __thread struct relay *relays;
static __thread int nr_relays;

static struct relay *relay_get(struct dcf_export *e, obj_t *h, fsal_async_cb done_cb,
			       void *caller_arg)
{
	struct relay *r = relays;

	if (r) {
		relays = r->next;
		nr_relays--;
		memset(r, 0, sizeof(*r));
	} else {
		r = gsh_calloc(1, sizeof(*r));
	}
	r->e = e;
	r->h = h;
	r->done_cb = done_cb;
	r->caller_arg = caller_arg;
	return r;
}

static void relay_put(struct relay *r)
{
	if (nr_relays >= RELAYS_KEPT) {
		gsh_free(r);
		return;
	}
	r->next = relays;
	relays = r;
	nr_relays++;
}

/* What a client is told of a sync. Only errors that say what a client can do about it; the rest is EIO: of an
 * ENOMEM Ganesha would drop an NFSv3 request without any answer, and of an ETIMEDOUT it would make "try
 * later", and then all would seem well. */
static fsal_status_t status_of(int err)
{
	switch (err) {
	case 0:
	case -ENOSPC:
	case -EDQUOT:
	case -EROFS:
	case -EFBIG:
		break;
	default:
		if (err < 0)
			return fsalstat(ERR_FSAL_IO, -err);
	}
	return err < 0 ? fsalstat(posix2fsal_error(-err), -err) : fsalstat(ERR_FSAL_NO_ERROR, 0);
}

/* ---- files ---- */

uint64_t dcf_client_id(void)
{
	const sockaddr_t *a = op_ctx->caller_addr;
	const uint8_t *p = NULL;
	uint64_t h = 0xcbf29ce484222325ULL;
	uint32_t port = 0;
	size_t len = 0;

	if (a && a->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)a;

		p = (const uint8_t *)&in->sin_addr;
		len = sizeof(in->sin_addr);
		port = in->sin_port;
	} else if (a && a->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)a;

		p = (const uint8_t *)&in->sin6_addr;
		len = sizeof(in->sin6_addr);
		port = in->sin6_port;
	}
	while (len--)
		h = (h ^ *p++) * 0x100000001b3ULL;
	return DC_CLIENT(h ^ h >> 32, port);
}

/* The file of this object in this export: MDCACHE may hand us one object through several exports of
 * one file system, and each has a budget of its own. Lock-free for the export that came first. */
static struct dc_file *file_of(struct dcf_obj *o, struct dc_export *budget)
{
	struct dc_file *file = __atomic_load_n(&o->file, __ATOMIC_ACQUIRE);

	if (!file || dc_file_is_of(file, budget))
		return file;
	file = NULL;
	pthread_mutex_lock(&dcf.live_lock);
	for (struct dcf_alias *a = o->aliases; a && !file; a = a->next)
		if (dc_file_is_of(a->file, budget))
			file = a->file;
	pthread_mutex_unlock(&dcf.live_lock);
	return file;
}

/* Remembers it, referenced by the object; or, if another thread was faster, lets go of it. */
static struct dc_file *remember(struct dcf_obj *o, struct dc_export *budget, struct dc_file *file)
{
	struct dcf_alias *alias = NULL;
	struct dc_file *there;

	pthread_mutex_lock(&dcf.live_lock);
	there = o->file && dc_file_is_of(o->file, budget) ? o->file : NULL;
	for (struct dcf_alias *a = o->aliases; a && !there; a = a->next)
		if (dc_file_is_of(a->file, budget))
			there = a->file;
	if (!there && !o->file) {
		__atomic_store_n(&o->file, file, __ATOMIC_RELEASE);
	} else if (!there) {
		alias = gsh_calloc(1, sizeof(*alias));
		alias->file = file;
		alias->next = o->aliases;
		o->aliases = alias;
	}
	pthread_mutex_unlock(&dcf.live_lock);
	if (!there)
		return file;
	dc_file_put(file);
	return there;
}

struct dc_file *dcf_file(struct dcf_export *e, struct dcf_obj *o)
{
	struct gsh_buffdesc key = { 0 };
	struct dc_file *file;

	if (!e->budget || o->handle.type != REGULAR_FILE)
		return NULL;
	file = file_of(o, e->budget);
	if (file)
		return file;
	DCF_SUB(e, o->sub->obj_ops->handle_to_key(o->sub, &key));
	if (key.len == 0 || key.len > DC_KEY_MAX)
		return NULL;
	return remember(o, e->budget, dc_file_get(e->budget, key.addr, key.len));
}

/* Pins a descriptor of the file's own, getting one if need be. */
static bool pin(struct dcf_export *e, struct dcf_obj *o, struct dc_file *file)
{
	for (int tries = 0; tries < 3; tries++) {
		int fd;

		if (dc_write_begin(file))
			return true;
		fd = dc_fd_room(e->budget) ? dcf_own_fd(e, o->sub) : -EMFILE;
		if (fd < 0) {
			if (!__atomic_exchange_n(&e->said_no_fd, true, __ATOMIC_RELAXED))
				LogWarn(COMPONENT_FSAL,
					"dontcache: export %u: no descriptor of our own for file "
					"%" PRIu64 ": %s. Writes to such files are made durable "
					"at once through the sub-FSAL, which is slow. Said once",
					e->export.export_id, o->handle.fileid, strerror(-fd));
			return false;
		}
		dc_file_set_fd(file, fd);
	}
	return false;
}

/* ---- read2, and writes that are passed on as they are ---- */

static void pass_done(obj_t *sub, fsal_status_t st, void *io, void *arg)
{
	struct relay *r = arg;
	struct fsal_export *saved = op_ctx->fsal_export;

	(void)sub;
	op_ctx->fsal_export = &r->e->export;
	if (dcf_no_fd(st)) {
		dc_fd_shed(dcf.engine);
		st = fsalstat(ERR_FSAL_DELAY, 0);
	}
	r->done_cb(r->h, st, io, r->caller_arg);
	op_ctx->fsal_export = saved;
	relay_put(r);
}

static void read2(obj_t *h, bool bypass, fsal_async_cb done_cb, struct fsal_io_arg *io, void *arg)
{
	struct dcf_export *e = dcf_current();
	struct relay *r = relay_get(e, h, done_cb, arg);

	dcf_gate_let_go();
	DCF_SUB(e, SUB(h)->obj_ops->read2(SUB(h), bypass, pass_done, io, r));
}

/* ---- write2 ---- */

/* The sub-FSAL's commit, for what cannot be synced through a descriptor of our own. */
static fsal_status_t sub_commit(struct dcf_export *e, obj_t *h)
{
	fsal_status_t st;

	DCF_TRY(e, st, SUB(h)->obj_ops->commit2(SUB(h), 0, 0));
	return st;
}

/* A stable write is durable, or is not: its reply goes out. Called by the device's sync thread. */
static void stable_done(struct dc_stable *s, int res)
{
	struct dcf_request *req = container_of(s, struct dcf_request, stable);
	struct req_op_context ctx;

	dcf_request_context(req, &ctx);
	req->io->fsal_stable = res == 0;
	/* After this neither io nor the object may be touched. */
	req->done_cb(req->h, status_of(res), req->io, req->caller_arg);
	release_op_context();
	dcf_request_free(req);
}

/* Records a stable write and has it synced. Another thread answers, maybe before this returns. */
static void stable_write_done(struct relay *r, const struct fsal_io_arg *io)
{
	struct dc_stable *s = &r->req->stable;

	s->offset = io->offset;
	s->len = io->io_amount;
	s->client = r->client;
	s->errors = r->errors;
	s->done = stable_done;
	dc_write_done(r->file, s->offset, s->len, r->pages, r->client, r->errors, true);
	dcf_gate_let_go();
	dc_stable_sync(r->file, s);
}

static void write_done(obj_t *sub, fsal_status_t st, void *data, void *arg)
{
	struct relay *r = arg;
	struct fsal_io_arg *io = data;
	struct fsal_export *saved = op_ctx->fsal_export;
	uint64_t len = FSAL_IS_ERROR(st) ? 0 : io->io_amount;

	(void)sub;
	op_ctx->fsal_export = &r->e->export;
	if (dcf_no_fd(st)) { /* nothing was written; the sub-FSAL's own descriptors are too many */
		dc_fd_shed(dcf.engine);
		st = fsalstat(ERR_FSAL_DELAY, 0);
	}
	if (r->full_len)
		io->iov[0].iov_len = r->full_len;
	if (r->pinned && r->req && len > 0) {
		stable_write_done(r, io);
		op_ctx->fsal_export = saved;
		relay_put(r);
		return;
	}
	if (r->req)
		dcf_request_free(r->req);
	if (r->pinned) {
		dc_write_done(r->file, io->offset, len, r->pages, r->client, r->errors, false);
	} else if (r->e->budget) {
		/* No descriptor: nothing may stay dirty that nobody accounts (R9). */
		if (len > 0)
			st = sub_commit(r->e, r->h);
		if (len > 0)
			dcf_note_lost(r->file, st);
		/* The sub-FSAL's sync cannot tell what somebody else was told meanwhile. */
		if (!FSAL_IS_ERROR(st) && r->file && dc_file_errors(r->file) != r->errors)
			st = status_of(-EIO);
		dc_count_write_through(r->e->budget);
		dc_unreserve(r->e->budget, r->pages);
	}
	io->fsal_stable = r->stable && !FSAL_IS_ERROR(st);
	/* After this neither io nor the object may be touched. */
	r->done_cb(r->h, st, io, r->caller_arg);
	op_ctx->fsal_export = saved;
	relay_put(r);
}

/* Fault injection: has the write failed already? */
static bool write_fault(struct relay *r, struct fsal_io_arg *io)
{
	uint64_t len = io->iov[0].iov_len;
	int err = dc_write_fault(r->e->budget, io->offset, &len);

	if (err < 0) {
		io->io_amount = 0;
		write_done(NULL, status_of(err), io, r);
		return true;
	}
	if (len > 0 && len < io->iov[0].iov_len && io->iov_count == 1) {
		r->full_len = io->iov[0].iov_len;
		io->iov[0].iov_len = len;
	}
	return false;
}

/* The sub-FSAL's write, with `pages` reserved. `req` may be NULL, then it is made where needed. */
static void write_through(struct dcf_export *e, obj_t *h, bool bypass, fsal_async_cb done_cb,
			  struct fsal_io_arg *io, void *caller_arg, struct dc_file *file,
			  bool pinned, uint64_t pages, uint64_t client, struct dcf_request *req)
{
	struct relay *r = relay_get(e, h, done_cb, caller_arg);
	struct dcf_obj *o = dcf_obj(h);

	r->file = file;
	r->pages = pages;
	r->client = client;
	r->pinned = pinned;
	r->errors = file ? dc_file_errors(file) : 0;
	r->stable = io->fsal_stable;
	if (pinned && r->stable) {
		if (!req)
			req = dcf_request_new(e, h, bypass, done_cb, io, caller_arg);
		req->stable.begun = dc_stable_begin(file);
	} else if (req) {
		dcf_request_free(req);
		req = NULL;
	}
	r->req = req;
	io->fsal_stable = false;
	if (e->faulty && write_fault(r, io))
		return;
	DCF_SUB(e, o->sub->obj_ops->write2(o->sub, bypass, write_done, io, r));
}

static size_t io_len(const struct fsal_io_arg *io)
{
	size_t len = 0;

	for (int i = 0; i < io->iov_count; i++)
		len += io->iov[i].iov_len;
	return len;
}

void dcf_write_admitted(struct dcf_export *e, obj_t *h, bool bypass, fsal_async_cb done_cb,
			struct fsal_io_arg *io, void *caller_arg, uint64_t pages, uint64_t client,
			struct dcf_request *req)
{
	struct dc_file *file = dcf_file(e, dcf_obj(h));
	bool pinned = file && pin(e, dcf_obj(h), file);

	if (pinned) {
		uint64_t need = dc_write_need(file, io->offset, io_len(io));

		/* What is cached, and so counted with its folios, may be another than when it was parked. */
		if (need > pages && !dc_admit_more(e->budget, need - pages)) {
			dc_write_unpin(file);
			dc_unreserve(e->budget, pages);
			dcf_park_again(req, dc_write_windows(io->offset, io_len(io)));
			return;
		}
		if (need < pages)
			dc_unreserve(e->budget, pages - need);
		pages = need;
	}
	write_through(e, h, bypass, done_cb, io, caller_arg, file, pinned, pages, client, req);
}

static void write2(obj_t *h, bool bypass, fsal_async_cb done_cb, struct fsal_io_arg *io, void *arg)
{
	struct dcf_export *e = dcf_current();
	size_t len = io_len(io);
	struct dc_file *file;
	uint64_t pages;
	bool pinned;

	/* Buffered mode; nothing to write; or an offset that no file has: the sub-FSAL's answer. */
	if (!e->budget || len == 0 || io->offset > INT64_MAX || len > INT64_MAX - io->offset) {
		struct relay *r = relay_get(e, h, done_cb, arg);

		DCF_SUB(e, SUB(h)->obj_ops->write2(SUB(h), bypass, pass_done, io, r));
		return;
	}
	dcf_gate_write(dc_near_limit(e->budget));
	file = dcf_file(e, dcf_obj(h));
	pinned = file && pin(e, dcf_obj(h), file);
	pages = pinned ? dc_write_need(file, io->offset, len) : dc_write_pages(io->offset, len);
	if (dc_admit(e->budget, pages)) {
		write_through(e, h, bypass, done_cb, io, arg, file, pinned, pages, dcf_client_id(),
			      NULL);
		return;
	}
	/* It may wait long: unpin. */
	if (pinned)
		dc_write_unpin(file);
	dcf_park(e, h, bypass, done_cb, io, arg, pages, len);
}

/* ---- commit2 ---- */

static fsal_status_t commit2(obj_t *h, off_t offset, size_t len)
{
	struct dcf_export *e = dcf_current();
	struct dc_file *file = dcf_file(e, dcf_obj(h));
	fsal_status_t st;
	int err;

	dcf_gate_let_go();
	if (file && dc_commit_is_free(file, dcf_client_id(), &err))
		return status_of(err);
	if (file && pin(e, dcf_obj(h), file)) {
		err = dc_commit(file, dcf_client_id(), (uint64_t)offset, len);
		dc_write_unpin(file);
		return status_of(err);
	}
	DCF_TRY(e, st, SUB(h)->obj_ops->commit2(SUB(h), offset, len));
	dcf_note_lost(file, st);
	if (file && !FSAL_IS_ERROR(st))
		st = status_of(dc_file_told(file, dcf_client_id()));
	return st;
}

/* ---- what shrinks ---- */

/* The file as far as the engine knows it already; does not make one. */
static struct dc_file *known(struct dcf_export *e, obj_t *h, bool *put)
{
	struct gsh_buffdesc key = { 0 };
	struct dc_file *file;

	*put = false;
	if (!h || !e->budget || h->type != REGULAR_FILE)
		return NULL;
	file = file_of(dcf_obj(h), e->budget);
	if (file)
		return file;
	DCF_SUB(e, SUB(h)->obj_ops->handle_to_key(SUB(h), &key));
	if (key.len == 0 || key.len > DC_KEY_MAX)
		return NULL;
	file = dc_file_find(e->budget, key.addr, key.len);
	*put = file != NULL;
	return file;
}

/* An operation that changes which bytes a file has: what must be known before it. */
struct resize {
	struct dc_file *file; /* NULL: nothing to account for */
	uint64_t seq, size;
	bool put, pinned;
};

/* `edges`: it may zero a part of a page, and so dirty it. Then even a file that nobody wrote to is of
 * interest. */
static struct resize resize_begin(struct dcf_export *e, obj_t *h, bool edges)
{
	struct resize r = { 0 };

	if (edges && e->budget) {
		r.file = dcf_file(e, dcf_obj(h));
		r.pinned = r.file && pin(e, dcf_obj(h), r.file);
		r.size = r.pinned ? dc_file_size(r.file) : 0;
	} else {
		r.file = known(e, h, &r.put);
	}
	r.seq = r.file ? dc_file_seq(r.file) : 0;
	return r;
}

/* [first, end) was given other bytes; end UINT64_MAX: first is the file's size now. */
static void resize_end(struct resize *r, fsal_status_t st, uint64_t first, uint64_t end)
{
	if (!r->file)
		return;
	if (!FSAL_IS_ERROR(st)) {
		if (end == UINT64_MAX)
			dc_file_truncated(r->file, first, r->seq);
		else if (end > first)
			dc_file_punched(r->file, first, end - first, r->seq);
	}
	if (r->pinned) {
		uint64_t now = dc_file_size(r->file);

		dc_file_edge(r->file, first);
		if (end != UINT64_MAX)
			dc_file_edge(r->file, end);
		if (now > r->size) /* what was beyond the old end, in its last page */
			dc_file_edge(r->file, r->size);
		dc_write_unpin(r->file);
	}
	if (r->put)
		dc_file_put(r->file);
}

static fsal_status_t setattr2(obj_t *h, bool bypass, struct state_t *state,
			      struct fsal_attrlist *attrs)
{
	struct dcf_export *e = dcf_current();
	struct resize r = { 0 };
	fsal_status_t st;

	/* To nothing, as an open that truncates does, leaves no edges. */
	if (FSAL_TEST_MASK(attrs->valid_mask, ATTR_SIZE))
		r = resize_begin(e, h, attrs->filesize != 0);
	DCF_TRY(e, st, SUB(h)->obj_ops->setattr2(SUB(h), bypass, state, attrs));
	resize_end(&r, st, attrs->filesize, UINT64_MAX);
	return st;
}

static fsal_status_t fallocate_(obj_t *h, struct state_t *state, uint64_t offset, uint64_t len,
				bool allocate)
{
	struct dcf_export *e = dcf_current();
	struct resize r = resize_begin(e, h, true);
	fsal_status_t st;

	DCF_SUB(e, st = SUB(h)->obj_ops->fallocate(SUB(h), state, offset, len, allocate));
	/* What is allocated keeps its bytes; only the end of the file may have moved. */
	resize_end(&r, st, offset, allocate ? offset : offset + len);
	return st;
}

static fsal_status_t unlink_(obj_t *dir, obj_t *h, const char *name)
{
	struct dcf_export *e = dcf_current();
	bool put;
	struct dc_file *file = known(e, h, &put);
	fsal_status_t st;

	DCF_SUB(e, st = SUB(dir)->obj_ops->unlink(SUB(dir), SUB(h), name));
	if (file) {
		if (!FSAL_IS_ERROR(st))
			dc_file_check_links(file);
		if (put)
			dc_file_put(file);
	}
	return st;
}

/* What `name` is before something is renamed over it, as far as the engine knows it; referenced. */
static struct dc_file *rename_target(struct dcf_export *e, obj_t *dir, const char *name)
{
	struct gsh_buffdesc key = { 0 };
	struct dc_file *file = NULL;
	obj_t *sub = NULL;
	fsal_status_t st;

	if (!e->budget || !dc_export_has_dirty(e->budget))
		return NULL;
	op_ctx->fsal_export = e->export.sub_export;
	st = SUB(dir)->obj_ops->lookup(SUB(dir), name, &sub, NULL);
	if (!FSAL_IS_ERROR(st) && sub) {
		if (sub->type == REGULAR_FILE) {
			sub->obj_ops->handle_to_key(sub, &key);
			if (key.len > 0 && key.len <= DC_KEY_MAX)
				file = dc_file_find(e->budget, key.addr, key.len);
		}
		sub->obj_ops->release(sub);
	}
	op_ctx->fsal_export = &e->export;
	return file;
}

static fsal_status_t rename_(obj_t *h, obj_t *from_dir, const char *from, obj_t *to_dir,
			     const char *to)
{
	struct dcf_export *e = dcf_current();
	struct dc_file *file = rename_target(e, to_dir, to);
	fsal_status_t st;

	DCF_SUB(e, st = SUB(h)->obj_ops->rename(SUB(h), SUB(from_dir), from, SUB(to_dir), to));
	if (file) {
		if (!FSAL_IS_ERROR(st))
			dc_file_check_links(file);
		dc_file_put(file);
	}
	return st;
}

/* An open of this object that truncates it. One by name (v4 OPEN, v3 CREATE of an existing file)
 * does not say which file it will be: its claims stay and end by being flushed, at no cost, since
 * the kernel has nothing dirty for them. */
static void opened(struct dc_file *file, fsal_openflags_t flags, const struct fsal_attrlist *set,
		   uint64_t seq)
{
	if (flags & FSAL_O_TRUNC)
		dc_file_truncated(file, 0, seq);
	else if (set && FSAL_TEST_MASK(set->valid_mask, ATTR_SIZE))
		dc_file_truncated(file, set->filesize, seq);
}

static fsal_status_t open2(obj_t *h, struct state_t *state, fsal_openflags_t flags,
			   enum fsal_create_mode mode, const char *name, struct fsal_attrlist *set,
			   fsal_verifier_t verifier, obj_t **out, struct fsal_attrlist *attrs,
			   bool *caller_perm_check)
{
	struct dcf_export *e = dcf_current();
	struct dc_file *file = name || !e->budget ? NULL : file_of(dcf_obj(h), e->budget);
	uint64_t seq = file ? dc_file_seq(file) : 0;
	obj_t *sub = NULL;
	fsal_status_t st;

	DCF_TRY(e, st,
		SUB(h)->obj_ops->open2(SUB(h), state, flags, mode, name, set, verifier, &sub, attrs,
				       caller_perm_check));
	if (FSAL_IS_ERROR(st))
		return st;
	if (name && sub)
		*out = dcf_wrap(e, sub);
	else if (file)
		opened(file, flags, set, seq);
	return st;
}

static fsal_status_t reopen2(obj_t *h, struct state_t *state, fsal_openflags_t flags)
{
	struct dcf_export *e = dcf_current();
	struct dc_file *file = e->budget ? file_of(dcf_obj(h), e->budget) : NULL;
	uint64_t seq = file ? dc_file_seq(file) : 0;
	fsal_status_t st;

	DCF_TRY(e, st, SUB(h)->obj_ops->reopen2(SUB(h), state, flags));
	if (file && !FSAL_IS_ERROR(st))
		opened(file, flags, NULL, seq);
	return st;
}

void dcf_write_ops_init(struct fsal_obj_ops *ops)
{
	ops->read2 = read2;
	ops->write2 = write2;
	ops->commit2 = commit2;
	ops->setattr2 = setattr2;
	ops->fallocate = fallocate_;
	ops->unlink = unlink_;
	ops->rename = rename_;
	ops->open2 = open2;
	ops->reopen2 = reopen2;
}
