/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Object operations that only pass down: each sub-FSAL object is wrapped in one of ours, and every
 * call unwraps. What writes, commits or shrinks a file is in write.c.
 *
 * Life time: Ganesha's destroy_fsals() would call release() without an op context on handles that
 * suspended requests still hold. So ours, and the sub-FSAL's below, are taken off their modules'
 * lists at once, and each export keeps its own list of what is alive (dcf_export.live), to release
 * the sub-handles before the sub-export goes.
 */
#include "fsal_dontcache.h"

typedef struct fsal_obj_handle obj_t;
typedef struct fsal_attrlist attrs_t;

#define SUB(h) (dcf_obj(h)->sub)

static void off_module_list(obj_t *h)
{
	PTHREAD_RWLOCK_wrlock(&h->fsal->lock);
	glist_del(&h->handles);
	glist_init(&h->handles);
	PTHREAD_RWLOCK_unlock(&h->fsal->lock);
}

obj_t *dcf_wrap(struct dcf_export *e, obj_t *sub)
{
	struct dcf_obj *o = gsh_calloc(1, sizeof(*o));

	fsal_obj_handle_init(&o->handle, &e->export, sub->type);
	off_module_list(&o->handle);
	off_module_list(sub);
	o->handle.obj_ops = &dcf.obj_ops;
	o->handle.fsid = sub->fsid;
	o->handle.fileid = sub->fileid;
	o->handle.fs = sub->fs;
	o->handle.state_hdl = sub->state_hdl;
	o->sub = sub;
	pthread_mutex_lock(&dcf.live_lock);
	glist_add_tail(&e->live, &o->live);
	pthread_mutex_unlock(&dcf.live_lock);
	return &o->handle;
}

static void release(obj_t *h)
{
	struct dcf_obj *o = dcf_obj(h);
	obj_t *sub;

	pthread_mutex_lock(&dcf.live_lock);
	glist_del(&o->live);
	sub = o->sub;
	o->sub = NULL;
	pthread_mutex_unlock(&dcf.live_lock);
	if (sub) {
		struct dcf_export *e = dcf_current();

		DCF_SUB(e, sub->obj_ops->release(sub));
	}
	if (o->file)
		dc_file_put(o->file);
	while (o->aliases) {
		struct dcf_alias *a = o->aliases;

		o->aliases = a->next;
		dc_file_put(a->file);
		gsh_free(a);
	}
	fsal_obj_handle_fini(&o->handle);
	gsh_free(o);
}

static fsal_status_t merge(obj_t *orig, obj_t *dupe)
{
	struct dcf_export *e = dcf_current();
	fsal_status_t st;

	/* FSAL_VFS keeps its share counters in the object. */
	DCF_SUB(e, st = SUB(orig)->obj_ops->merge(SUB(orig), SUB(dupe)));
	return st;
}

/* Operations that answer with a new object. */
#define MAKES(name, args, call)                                                                    \
	static fsal_status_t name args                                                             \
	{                                                                                          \
		struct dcf_export *e = dcf_current();                                              \
		obj_t *sub = NULL;                                                                 \
		fsal_status_t st;                                                                  \
                                                                                                   \
		*out = NULL;                                                                       \
		DCF_TRY(e, st, call);                                                              \
		if (!FSAL_IS_ERROR(st) && sub)                                                     \
			*out = dcf_wrap(e, sub);                                                   \
		return st;                                                                         \
	}

MAKES(lookup, (obj_t * dir, const char *name, obj_t **out, attrs_t *attrs),
      SUB(dir)->obj_ops->lookup(SUB(dir), name, &sub, attrs))
MAKES(mkdir_, (obj_t * dir, const char *name, attrs_t *in, obj_t **out, attrs_t *attrs),
      SUB(dir)->obj_ops->mkdir(SUB(dir), name, in, &sub, attrs))
MAKES(mknode,
      (obj_t * dir, const char *name, object_file_type_t type, attrs_t *in, obj_t **out,
       attrs_t *attrs),
      SUB(dir)->obj_ops->mknode(SUB(dir), name, type, in, &sub, attrs))
MAKES(symlink_,
      (obj_t * dir, const char *name, const char *path, attrs_t *in, obj_t **out, attrs_t *attrs),
      SUB(dir)->obj_ops->symlink(SUB(dir), name, path, in, &sub, attrs))

struct readdir_arg {
	fsal_readdir_cb cb;
	void *arg;
	struct dcf_export *e;
};

static enum fsal_dir_result readdir_cb(const char *name, obj_t *sub, attrs_t *attrs, void *arg,
				       fsal_cookie_t cookie)
{
	struct readdir_arg *a = arg;
	obj_t *h = dcf_wrap(a->e, sub);
	enum fsal_dir_result res;

	op_ctx->fsal_export = &a->e->export;
	res = a->cb(name, h, attrs, a->arg, cookie);
	op_ctx->fsal_export = a->e->export.sub_export;
	return res;
}

static fsal_status_t readdir_(obj_t *dir, fsal_cookie_t *whence, void *arg, fsal_readdir_cb cb,
			      attrmask_t mask, bool *eof)
{
	struct dcf_export *e = dcf_current();
	struct readdir_arg a = { cb, arg, e };
	fsal_status_t st;

	DCF_TRY(e, st, SUB(dir)->obj_ops->readdir(SUB(dir), whence, &a, readdir_cb, mask, eof));
	return st;
}

/* Operations that pass everything on. */
#define PASSES(type, name, args, call)                                                             \
	static type name args                                                                      \
	{                                                                                          \
		struct dcf_export *e = dcf_current();                                              \
		type res;                                                                          \
                                                                                                   \
		DCF_SUB(e, res = SUB(h)->obj_ops->call);                                           \
		return res;                                                                        \
	}

PASSES(fsal_cookie_t, compute_readdir_cookie, (obj_t * h, const char *name),
       compute_readdir_cookie(SUB(h), name))
PASSES(int, dirent_cmp,
       (obj_t * h, const char *n1, fsal_cookie_t c1, const char *n2, fsal_cookie_t c2),
       dirent_cmp(SUB(h), n1, c1, n2, c2))
PASSES(fsal_status_t, readlink_, (obj_t * h, struct gsh_buffdesc *link, bool refresh),
       readlink(SUB(h), link, refresh))
PASSES(fsal_status_t, link_, (obj_t * h, obj_t *dir, const char *name),
       link(SUB(h), SUB(dir), name))
PASSES(bool, check_verifier, (obj_t * h, fsal_verifier_t verf), check_verifier(SUB(h), verf))
PASSES(fsal_openflags_t, status2, (obj_t * h, struct state_t *state), status2(SUB(h), state))
PASSES(fsal_status_t, seek2, (obj_t * h, struct state_t *state, struct io_info *info),
       seek2(SUB(h), state, info))
PASSES(fsal_status_t, io_advise2, (obj_t * h, struct state_t *state, struct io_hints *hints),
       io_advise2(SUB(h), state, hints))
PASSES(fsal_status_t, lock_op2,
       (obj_t * h, struct state_t *state, void *owner, fsal_lock_op_t op, fsal_lock_param_t *want,
	fsal_lock_param_t *conflict),
       lock_op2(SUB(h), state, owner, op, want, conflict))
PASSES(fsal_status_t, lease_op2,
       (obj_t * h, struct state_t *state, void *owner, fsal_deleg_t deleg),
       lease_op2(SUB(h), state, owner, deleg))
PASSES(bool, is_referral, (obj_t * h, attrs_t *attrs, bool cache),
       is_referral(SUB(h), attrs, cache))
PASSES(fsal_status_t, getxattrs, (obj_t * h, xattrkey4 *key, xattrvalue4 *value),
       getxattrs(SUB(h), key, value))
PASSES(fsal_status_t, setxattrs,
       (obj_t * h, setxattr_option4 option, xattrkey4 *key, xattrvalue4 *value),
       setxattrs(SUB(h), option, key, value))
PASSES(fsal_status_t, removexattrs, (obj_t * h, xattrkey4 *key), removexattrs(SUB(h), key))
PASSES(fsal_status_t, listxattrs,
       (obj_t * h, count4 len, nfs_cookie4 *cookie, bool_t *eof, xattrlist4 *names),
       listxattrs(SUB(h), len, cookie, eof, names))
PASSES(fsal_status_t, list_ext_attrs,
       (obj_t * h, unsigned int cookie, fsal_xattrent_t *tab, unsigned int size, unsigned int *nr,
	int *end),
       list_ext_attrs(SUB(h), cookie, tab, size, nr, end))
PASSES(fsal_status_t, getextattr_id_by_name, (obj_t * h, const char *name, unsigned int *id),
       getextattr_id_by_name(SUB(h), name, id))
PASSES(fsal_status_t, getextattr_value_by_name,
       (obj_t * h, const char *name, void *buf, size_t len, size_t *out),
       getextattr_value_by_name(SUB(h), name, buf, len, out))
PASSES(fsal_status_t, getextattr_value_by_id,
       (obj_t * h, unsigned int id, void *buf, size_t len, size_t *out),
       getextattr_value_by_id(SUB(h), id, buf, len, out))
PASSES(fsal_status_t, setextattr_value,
       (obj_t * h, const char *name, void *buf, size_t len, int create),
       setextattr_value(SUB(h), name, buf, len, create))
PASSES(fsal_status_t, setextattr_value_by_id, (obj_t * h, unsigned int id, void *buf, size_t len),
       setextattr_value_by_id(SUB(h), id, buf, len))
PASSES(fsal_status_t, remove_extattr_by_id, (obj_t * h, unsigned int id),
       remove_extattr_by_id(SUB(h), id))
PASSES(fsal_status_t, remove_extattr_by_name, (obj_t * h, const char *name),
       remove_extattr_by_name(SUB(h), name))

static fsal_status_t getattrs(obj_t *h, attrs_t *attrs)
{
	struct dcf_export *e = dcf_current();
	fsal_status_t st;

	DCF_TRY(e, st, SUB(h)->obj_ops->getattrs(SUB(h), attrs));
	return st;
}

/* Closing may tell of a failed writeback, and whoever closes is not whose data it was. */
static fsal_status_t closed(struct dcf_export *e, obj_t *h, fsal_status_t st)
{
	if (dcf_lost_data(st))
		dcf_note_lost(dcf_file(e, dcf_obj(h)), st);
	return st;
}

static fsal_status_t close_(obj_t *h)
{
	struct dcf_export *e = dcf_current();
	fsal_status_t st;

	DCF_SUB(e, st = SUB(h)->obj_ops->close(SUB(h)));
	return closed(e, h, st);
}

static fsal_status_t close2(obj_t *h, struct state_t *state)
{
	struct dcf_export *e = dcf_current();
	fsal_status_t st;

	DCF_SUB(e, st = SUB(h)->obj_ops->close2(SUB(h), state));
	return closed(e, h, st);
}

static fsal_status_t handle_to_wire(const obj_t *h, fsal_digesttype_t type, struct gsh_buffdesc *d)
{
	struct dcf_obj *o = container_of((obj_t *)h, struct dcf_obj, handle);
	struct dcf_export *e = dcf_current();
	fsal_status_t st;

	DCF_SUB(e, st = o->sub->obj_ops->handle_to_wire(o->sub, type, d));
	return st;
}

static void handle_to_key(obj_t *h, struct gsh_buffdesc *d)
{
	struct dcf_export *e = dcf_current();

	DCF_SUB(e, SUB(h)->obj_ops->handle_to_key(SUB(h), d));
}

void dcf_obj_ops_init(struct fsal_obj_ops *ops)
{
	fsal_default_obj_ops_init(ops);
	ops->release = release;
	ops->merge = merge;
	ops->lookup = lookup;
	ops->mkdir = mkdir_;
	ops->mknode = mknode;
	ops->symlink = symlink_;
	ops->readdir = readdir_;
	ops->compute_readdir_cookie = compute_readdir_cookie;
	ops->dirent_cmp = dirent_cmp;
	ops->readlink = readlink_;
	ops->getattrs = getattrs;
	ops->link = link_;
	ops->close = close_;
	ops->check_verifier = check_verifier;
	ops->status2 = status2;
	ops->seek2 = seek2;
	ops->io_advise2 = io_advise2;
	ops->lock_op2 = lock_op2;
	ops->lease_op2 = lease_op2;
	ops->close2 = close2;
	ops->is_referral = is_referral;
	ops->getxattrs = getxattrs;
	ops->setxattrs = setxattrs;
	ops->removexattrs = removexattrs;
	ops->listxattrs = listxattrs;
	ops->list_ext_attrs = list_ext_attrs;
	ops->getextattr_id_by_name = getextattr_id_by_name;
	ops->getextattr_value_by_name = getextattr_value_by_name;
	ops->getextattr_value_by_id = getextattr_value_by_id;
	ops->setextattr_value = setextattr_value;
	ops->setextattr_value_by_id = setextattr_value_by_id;
	ops->remove_extattr_by_id = remove_extattr_by_id;
	ops->remove_extattr_by_name = remove_extattr_by_name;
	ops->handle_to_wire = handle_to_wire;
	ops->handle_to_key = handle_to_key;
}
