/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Export operations, and an export's life time.
 *
 * Ending: prepare_unexport() stops parking and answers everything parked; release() then drains and
 * lets go. release() may run in one of the engine's executors (a parked request held the last
 * reference), and at the very end of the server without any op context, when the sub-FSAL may be
 * unloaded already.
 */
#include "fsal_dontcache.h"

#define MS 1000000ULL
#define DETACH_NS (1000 * MS)

typedef struct fsal_export exp_t;

/* Releases the sub-handles of every object that is still referenced (by requests that will never
 * be finished), before the sub-export goes. op_ctx->fsal_export is the sub-export. */
static void release_sub_handles(struct dcf_export *e)
{
	struct dcf_export *heir = NULL;
	struct glist_head *g;
	unsigned int n = 0;

	pthread_mutex_lock(&dcf.live_lock);
	/* MDCACHE shares objects between exports of one file system: what is alive may be in use
	 * through another, and goes over to it. */
	glist_for_each(g, &dcf.exports) {
		struct dcf_export *other = glist_entry(g, struct dcf_export, all);

		if (other != e && other->dev == e->dev &&
		    other->export.sub_export->fsal == e->export.sub_export->fsal)
			heir = other;
	}
	if (heir)
		glist_splice_tail(&heir->live, &e->live);
	while (!glist_empty(&e->live)) {
		struct dcf_obj *o = glist_first_entry(&e->live, struct dcf_obj, live);
		struct fsal_obj_handle *sub = o->sub;

		glist_del(&o->live);
		glist_init(&o->live);
		o->sub = NULL;
		pthread_mutex_unlock(&dcf.live_lock);
		if (sub)
			sub->obj_ops->release(sub);
		n++;
		pthread_mutex_lock(&dcf.live_lock);
	}
	pthread_mutex_unlock(&dcf.live_lock);
	if (n)
		LogEvent(COMPONENT_FSAL,
			 "dontcache: export %u: %u objects were still referenced at its end",
			 e->export.export_id, n);
}

/* Stopping is bounded: what is dirty then is the kernel's to write, as without us. Exports that end
 * together share the time, or stopping would take it for each. */
static uint64_t drain_time(const struct dcf_export *e)
{
	static uint64_t began, last;
	uint64_t now = dcf_now(NULL), timeout = e->params.drain_timeout_ms * MS, left;

	pthread_mutex_lock(&dcf.live_lock);
	if (began == 0 || (now > last && now - last > 1000 * MS))
		began = now;
	last = now + timeout + DETACH_NS;
	left = now - began < timeout ? timeout - (now - began) : 0;
	pthread_mutex_unlock(&dcf.live_lock);
	/* 0 would mean: parked writes only. */
	return left ? left : 1;
}

static void end_budget(struct dcf_export *e)
{
	uint64_t left, begin = dcf_now(NULL);

	if (!e->budget)
		return;
	left = dc_export_drain(e->budget, drain_time(e));
	if (left)
		LogWarn(COMPONENT_FSAL,
			"dontcache: export %u: %" PRIu64
			" KiB were not written back within Drain_Timeout_Ms = %" PRIu64
			"; the kernel will write them",
			e->export.export_id, left >> 10, e->params.drain_timeout_ms);
	else
		LogEvent(COMPONENT_FSAL, "dontcache: export %u: drained in %" PRIu64 " ms",
			 e->export.export_id, (uint64_t)((dcf_now(NULL) - begin) / MS));
	/* What has not come by now will not for a while. */
	dc_export_free(e->budget, left ? DETACH_NS / 10 : DETACH_NS);
	e->budget = NULL;
}

static void release(exp_t *x)
{
	struct dcf_export *e = dcf_export(x);
	struct fsal_module *sub_fsal = x->sub_export->fsal;
	struct req_op_context ctx;
	exp_t *saved = NULL;
	bool own_ctx = op_ctx == NULL;

	pthread_mutex_lock(&dcf.live_lock);
	if (!glist_null(&e->all))
		glist_del(&e->all);
	pthread_mutex_unlock(&dcf.live_lock);
	end_budget(e);
	if (own_ctx && x->super_export) {
		/* destroy_fsals(): the process ends, and the sub-FSAL may be unloaded. */
		fsal_detach_export(x->fsal, &x->exports);
		return;
	}
	if (own_ctx)
		init_op_context_simple(&ctx, NULL, x->sub_export);
	else
		saved = op_ctx->fsal_export;
	op_ctx->fsal_export = x->sub_export;
	release_sub_handles(e);
	x->sub_export->exp_ops.release(x->sub_export);
	if (own_ctx)
		release_op_context();
	else
		op_ctx->fsal_export = saved;
	fsal_put(sub_fsal);
	if (!glist_null(&x->exports))
		fsal_detach_export(x->fsal, &x->exports);
	free_export_ops(x);
	if (e->root_fd >= 0)
		close(e->root_fd);
	gsh_free(e);
}

static void prepare_unexport(exp_t *x)
{
	struct dcf_export *e = dcf_export(x);

	/* Parked writes are answered "try later"; the rest is drained in release(). */
	if (e->budget)
		dc_export_drain(e->budget, 0);
	DCF_SUB(e, x->sub_export->exp_ops.prepare_unexport(x->sub_export));
}

/*
 * NFSv4 asks for the verifier at each reply; NFSv3 takes Ganesha's own, the start epoch in seconds,
 * without asking. Ours differs between any two starts of the export, even within a second, and after an error, so
 * that clients send again whatever they have not committed.
 */
static void get_write_verifier(exp_t *x, struct gsh_buffdesc *d)
{
	struct dcf_export *e = dcf_export(x);
	uint64_t v;

	if (!e->budget || d->len < sizeof(v)) {
		DCF_SUB(e, x->sub_export->exp_ops.get_write_verifier(x->sub_export, d));
		return;
	}
	v = e->verifier ^ dc_export_error_generation(e->budget) * 0x9e3779b97f4a7c15ULL;
	memcpy(d->addr, &v, sizeof(v));
}

static uint32_t fs_maxwrite(exp_t *x)
{
	struct dcf_export *e = dcf_export(x);
	uint32_t max;

	DCF_SUB(e, max = x->sub_export->exp_ops.fs_maxwrite(x->sub_export));
	/* The budget must hold several of the largest writes, at any limit it may be set to. */
	if (e->budget && (max == 0 || max > DC_MAX_WRITE))
		max = DC_MAX_WRITE;
	return max;
}

static fsal_status_t lookup_path(exp_t *x, const char *path, struct fsal_obj_handle **out,
				 struct fsal_attrlist *attrs)
{
	struct dcf_export *e = dcf_export(x);
	struct fsal_obj_handle *sub = NULL;
	fsal_status_t st;

	*out = NULL;
	DCF_SUB(e, st = x->sub_export->exp_ops.lookup_path(x->sub_export, path, &sub, attrs));
	if (!FSAL_IS_ERROR(st) && sub)
		*out = dcf_wrap(e, sub);
	return st;
}

static fsal_status_t create_handle(exp_t *x, struct gsh_buffdesc *key, struct fsal_obj_handle **out,
				   struct fsal_attrlist *attrs)
{
	struct dcf_export *e = dcf_export(x);
	struct fsal_obj_handle *sub = NULL;
	fsal_status_t st;

	*out = NULL;
	DCF_TRY(e, st, x->sub_export->exp_ops.create_handle(x->sub_export, key, &sub, attrs));
	if (!FSAL_IS_ERROR(st) && sub)
		*out = dcf_wrap(e, sub);
	return st;
}

static fsal_status_t get_fs_dynamic_info(exp_t *x, struct fsal_obj_handle *h,
					 fsal_dynamicfsinfo_t *info)
{
	struct dcf_export *e = dcf_export(x);
	fsal_status_t st;

	DCF_SUB(e, st = x->sub_export->exp_ops.get_fs_dynamic_info(x->sub_export, dcf_obj(h)->sub,
								   info));
	return st;
}

static struct state_t *alloc_state(exp_t *x, enum state_type type, struct state_t *related)
{
	struct dcf_export *e = dcf_export(x);
	struct state_t *state;

	DCF_SUB(e, state = x->sub_export->exp_ops.alloc_state(x->sub_export, type, related));
	return state;
}

static void free_state(exp_t *x, struct state_t *state)
{
	struct dcf_export *e = dcf_export(x);

	DCF_SUB(e, x->sub_export->exp_ops.free_state(x->sub_export, state));
}

/* Called for every request that brings a handle. */
static fsal_status_t wire_to_host(exp_t *x, fsal_digesttype_t type, struct gsh_buffdesc *d,
				  int flags)
{
	struct dcf_export *e = dcf_export(x);
	fsal_status_t st;

	if (e->budget)
		dcf_gate_install();
	DCF_SUB(e, st = x->sub_export->exp_ops.wire_to_host(x->sub_export, type, d, flags));
	return st;
}

#define PASSES(type, name, args, call)                                                             \
	static type name args                                                                      \
	{                                                                                          \
		struct dcf_export *e = dcf_export(x);                                              \
		exp_t *sub = x->sub_export;                                                        \
		type res;                                                                          \
                                                                                                   \
		DCF_SUB(e, res = sub->exp_ops.call);                                               \
		return res;                                                                        \
	}

PASSES(bool, fs_supports, (exp_t * x, fsal_fsinfo_options_t option), fs_supports(sub, option))
PASSES(uint64_t, fs_maxfilesize, (exp_t * x), fs_maxfilesize(sub))
PASSES(uint32_t, fs_maxread, (exp_t * x), fs_maxread(sub))
PASSES(uint32_t, fs_maxlink, (exp_t * x), fs_maxlink(sub))
PASSES(uint32_t, fs_maxnamelen, (exp_t * x), fs_maxnamelen(sub))
PASSES(uint32_t, fs_maxpathlen, (exp_t * x), fs_maxpathlen(sub))
PASSES(fsal_aclsupp_t, fs_acl_support, (exp_t * x), fs_acl_support(sub))
PASSES(attrmask_t, fs_supported_attrs, (exp_t * x), fs_supported_attrs(sub))
PASSES(uint32_t, fs_umask, (exp_t * x), fs_umask(sub))
PASSES(int32_t, fs_expiretimeparent, (exp_t * x), fs_expiretimeparent(sub))
PASSES(fsal_status_t, check_quota, (exp_t * x, const char *path, int type),
       check_quota(sub, path, type))
PASSES(fsal_status_t, get_quota, (exp_t * x, const char *path, int type, int id, fsal_quota_t *q),
       get_quota(sub, path, type, id, q))
PASSES(fsal_status_t, set_quota,
       (exp_t * x, const char *path, int type, int id, fsal_quota_t *q, fsal_quota_t *out),
       set_quota(sub, path, type, id, q, out))
PASSES(bool, is_superuser, (exp_t * x, const struct user_cred *creds), is_superuser(sub, creds))
PASSES(fsal_status_t, host_to_key, (exp_t * x, struct gsh_buffdesc *d), host_to_key(sub, d))

void dcf_export_ops_init(struct export_ops *ops)
{
	ops->release = release;
	ops->prepare_unexport = prepare_unexport;
	ops->lookup_path = lookup_path;
	ops->create_handle = create_handle;
	ops->wire_to_host = wire_to_host;
	ops->host_to_key = host_to_key;
	ops->get_fs_dynamic_info = get_fs_dynamic_info;
	ops->fs_supports = fs_supports;
	ops->fs_maxfilesize = fs_maxfilesize;
	ops->fs_maxread = fs_maxread;
	ops->fs_maxwrite = fs_maxwrite;
	ops->fs_maxlink = fs_maxlink;
	ops->fs_maxnamelen = fs_maxnamelen;
	ops->fs_maxpathlen = fs_maxpathlen;
	ops->fs_acl_support = fs_acl_support;
	ops->fs_supported_attrs = fs_supported_attrs;
	ops->fs_umask = fs_umask;
	ops->fs_expiretimeparent = fs_expiretimeparent;
	ops->check_quota = check_quota;
	ops->get_quota = get_quota;
	ops->set_quota = set_quota;
	ops->alloc_state = alloc_state;
	ops->free_state = free_state;
	ops->is_superuser = is_superuser;
	ops->get_write_verifier = get_write_verifier;
}
