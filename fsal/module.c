/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* The module: registering with Ganesha, making and updating exports, the engine's clock and log. */
#include "fsal_dontcache.h"

#include <linux/magic.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <time.h>

struct dcf_module dcf = {
	.live_lock = PTHREAD_MUTEX_INITIALIZER,
	.exports = { &dcf.exports, &dcf.exports },
};

static const char myname[] = "DONTCACHE";

/* ---- what the engine asks of us ---- */

uint64_t dcf_now(void *unused)
{
	struct timespec ts;

	(void)unused;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

static void log_line(void *unused, enum dc_log_level level, const char *text)
{
	(void)unused;
	switch (level) {
	case DC_LOG_ERROR:
		LogCrit(COMPONENT_FSAL, "dontcache: %s", text);
		break;
	case DC_LOG_WARN:
		LogWarn(COMPONENT_FSAL, "dontcache: %s", text);
		break;
	default:
		LogEvent(COMPONENT_FSAL, "dontcache: %s", text);
	}
}

static const struct dc_host_ops host_ops = {
	.now_ns = dcf_now,
	.log = log_line,
	.client_resume = dcf_gate_open,
};

/* Parked writes are carried out by these; as many as there are CPUs can make use of. */
static unsigned int executors(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return cpus < 2 ? 2 : cpus > 16 ? 16 : (unsigned int)cpus;
}

#define OPEN_FILES_MIN 16U
#define OPEN_FILES_MAX 65536U

/*
 * Ganesha closes descriptors of its own only above 90% of what the process may open
 * (FD_HWMark_Percent), and knows nothing of ours. So ours and the connections have to fit into the
 * tenth that is left.
 */
static unsigned int open_files(void)
{
	struct rlimit lim;
	rlim_t n;

	if (dcf.params.max_open_files)
		return (unsigned int)dcf.params.max_open_files;
	if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_cur == RLIM_INFINITY)
		return OPEN_FILES_MAX;
	n = lim.rlim_cur / 16;
	return n < OPEN_FILES_MIN ? OPEN_FILES_MIN :
	       n > OPEN_FILES_MAX ? OPEN_FILES_MAX :
				    (unsigned int)n;
}

static struct dc_engine *engine(void)
{
	struct dc_engine_options opt = {
		.executors = executors(),
		.max_open_files = open_files(),
		.threads = true,
		.law = dc_pace_linear,
	};
	struct dc_machine machine;

	dc_machine_read(&machine);
	pthread_mutex_lock(&dcf.live_lock);
	opt.dirty_bytes = dc_server_dirty_bytes(&dcf.params, &machine);
	if (!dcf.engine) {
		char text[32];

		dcf.engine = dc_engine_new(&host_ops, NULL, &opt);
		LogEvent(COMPONENT_FSAL, "dontcache: Dirty_Bytes of all exports together: %s",
			 opt.dirty_bytes ? dc_size_text(opt.dirty_bytes, text) : "no limit");
	}
	pthread_mutex_unlock(&dcf.live_lock);
	return dcf.engine;
}

/* ---- the server-wide DONTCACHE { } block ---- */

static struct config_block server_block = {
	.dbus_interface_name = "org.ganesha.nfsd.config.dontcache",
	.blk_desc.name = "DONTCACHE",
	.blk_desc.type = CONFIG_BLOCK,
	.blk_desc.flags = CONFIG_UNIQUE,
	.blk_desc.u.blk.init = noop_conf_init,
	.blk_desc.u.blk.params = dcf_server_items,
	.blk_desc.u.blk.commit = noop_conf_commit,
};

static fsal_status_t init_config(struct fsal_module *m, config_file_t conf,
				 struct config_error_type *err)
{
	struct dcf_server_conf p = { 0 };
	/* Its messages go where the others go, but its errors are not those of the EXPORT that is being
	 * read when the first one loads us: Ganesha would drop that export. */
	struct config_error_type own = { .diag_buf = err->diag_buf,
					 .diag_buf_size = err->diag_buf_size,
					 .fp = err->fp };

	display_fsinfo(m);
	dcf_conf_items();
	load_config_from_parse(conf, &server_block, &p, true, &own);
	err->diag_buf = own.diag_buf;
	err->diag_buf_size = own.diag_buf_size;
	err->fp = own.fp;
	if (!config_error_is_harmless(&own)) {
		LogCrit(COMPONENT_CONFIG,
			"dontcache: errors in the DONTCACHE block: no control socket");
		return fsalstat(ERR_FSAL_NO_ERROR, 0);
	}
	if (p.control_socket && dcf_control_start(p.control_socket) == 0)
		LogEvent(COMPONENT_FSAL, "dontcache: control socket %s", p.control_socket);
	return fsalstat(ERR_FSAL_NO_ERROR, 0);
}

/* Every export brings the tree that the block is in; the first one and those of a reload may find it
 * changed. A block with an error changes nothing. */
static void server_params(void *node)
{
	struct dc_server_params p;
	struct dc_machine machine;
	bool there, changed;
	uint64_t bytes;
	char text[32];

	dc_server_defaults(&p);
	if (dcf_conf_server(node, &p, &there) != 0) {
		LogCrit(COMPONENT_CONFIG,
			"dontcache: the DONTCACHE block's parameters stay what they were for the errors "
			"above");
		return;
	}
	/* UpdateExport brings a file with nothing but the export. */
	if (!there)
		return;
	pthread_mutex_lock(&dcf.live_lock);
	changed = dcf.engine && p.dirty_bytes != dcf.params.dirty_bytes;
	if (dcf.engine)
		p.max_open_files = dcf.params.max_open_files;
	dcf.params = p;
	pthread_mutex_unlock(&dcf.live_lock);
	if (!changed)
		return;
	dc_machine_read(&machine);
	bytes = dc_server_dirty_bytes(&p, &machine);
	dc_engine_set_dirty_bytes(dcf.engine, bytes);
	LogEvent(COMPONENT_FSAL, "dontcache: Dirty_Bytes of all exports together is now %s",
		 dc_size_text(bytes, text));
}

/* What an export's limits are worth beside the server's. */
static void compare(const struct dcf_export *e, const char *path)
{
	struct dc_pool_stats st;
	char a[32], b[32];

	if (!e->budget)
		return;
	dc_pool_stats(dcf.engine, &st);
	if (st.dirty_bytes && e->params.dirty_bytes > st.dirty_bytes)
		LogWarn(COMPONENT_FSAL,
			"dontcache: export %s: Dirty_Bytes = %s is above that of all exports together, %s "
			"(block DONTCACHE): it will never have more than that",
			path, dc_size_text(e->params.dirty_bytes, a),
			dc_size_text(st.dirty_bytes, b));
	if (st.dirty_bytes && st.mins > st.dirty_bytes)
		LogWarn(COMPONENT_FSAL,
			"dontcache: export %s: the Min_Bytes of all exports add up to %s, more than the "
			"Dirty_Bytes of the block DONTCACHE, %s: each gets its part of that only",
			path, dc_size_text(st.mins, a), dc_size_text(st.dirty_bytes, b));
}

/* ---- exports ---- */

static void announce(struct dcf_export *e, const char *path, const char *what)
{
	char a[32], b[32], c[32];
	const struct dc_params *p = &e->params;

	if (p->io_mode == DC_MODE_BUFFERED)
		LogEvent(COMPONENT_FSAL, "dontcache: export %s %s: IO_Mode buffered", path, what);
	else
		LogEvent(COMPONENT_FSAL,
			 "dontcache: export %s %s: IO_Mode %s, Dirty_Bytes %s, "
			 "Dirty_Background_Bytes %s, Parked_Bytes %s",
			 path, what, dc_io_mode_names[p->io_mode], dc_size_text(p->dirty_bytes, a),
			 dc_size_text(dc_params_background(p), b),
			 dc_size_text(p->parked_bytes, c));
}

static fsal_status_t create_export(struct fsal_module *m, void *node, struct config_error_type *err,
				   const struct fsal_up_vector *up_ops)
{
	const char *path = CTX_FULLPATH(op_ctx);
	struct dcf_conf conf = { 0 };
	struct fsal_module *sub;
	char fault[DCF_FAULT_MAX];
	struct dc_params params;
	struct dcf_export *e;
	fsal_status_t status;
	int rc;

	server_params(node);
	if (load_config_from_node(node, &dcf_export_block, &conf, true, err) != 0 ||
	    dcf_conf_read(node, path, &params) != 0 ||
	    dcf_conf_fault(node, path, fault, sizeof(fault)) != 0) {
		LogCrit(COMPONENT_CONFIG,
			"dontcache: export %s is refused for the errors above; others are served",
			path);
		return fsalstat(ERR_FSAL_INVAL, EINVAL);
	}
	sub = conf.subfsal.name ? lookup_fsal(conf.subfsal.name) : NULL;
	if (!sub) {
		LogCrit(COMPONENT_CONFIG,
			"dontcache: export %s: its FSAL block needs an inner one for the sub-FSAL, "
			"such as FSAL { Name = VFS; }",
			path);
		return fsalstat(ERR_FSAL_INVAL, EINVAL);
	}
	e = gsh_calloc(1, sizeof(*e));
	e->root_fd = -1;
	glist_init(&e->live);
	status = sub->m_ops.create_export(sub, conf.subfsal.fsal_node, err, up_ops);
	fsal_put(sub);
	if (FSAL_IS_ERROR(status)) {
		LogCrit(COMPONENT_FSAL, "dontcache: export %s: sub-FSAL %s refused it", path,
			conf.subfsal.name);
		gsh_free(e);
		return status;
	}
	/* op_ctx->fsal_export is the sub-export now. */
	fsal_export_stack(op_ctx->fsal_export, &e->export);
	fsal_export_init(&e->export);
	dcf_export_ops_init(&e->export.exp_ops);
	e->export.up_ops = up_ops;
	e->export.fsal = m;
	rc = dcf_export_start(e, path, &params, fault);
	if (rc == 0)
		rc = fsal_attach_export(m, &e->export.exports);
	op_ctx->fsal_export = &e->export;
	op_ctx->fsal_module = m;
	if (rc != 0) {
		LogCrit(COMPONENT_FSAL, "dontcache: export %s: %s", path, strerror(-rc));
		e->export.exp_ops.release(&e->export);
		op_ctx->fsal_export = NULL;
		return fsalstat(ERR_FSAL_SERVERFAULT, -rc);
	}
	announce(e, path, "served");
	compare(e, path);
	return fsalstat(ERR_FSAL_NO_ERROR, 0);
}

/* A reload. Whatever is wrong with our own parameters, the export stays up with the old ones: an
 * error returned from here would make Ganesha remove it. */
static fsal_status_t update(struct fsal_module *m, void *node, struct config_error_type *err,
			    struct fsal_export *original, struct fsal_module *super)
{
	struct dcf_export *e = dcf_export(original);
	const char *path = CTX_FULLPATH(op_ctx);
	char fault[DCF_FAULT_MAX], msg[DC_FAULT_MSG];
	struct dcf_conf conf = { 0 };
	struct fsal_module *sub;
	struct dc_params params;
	fsal_status_t status = update_export(m, node, err, original, super);

	if (FSAL_IS_ERROR(status))
		return status;
	server_params(node);
	if (load_config_from_node(node, &dcf_export_block, &conf, true, err) != 0)
		return fsalstat(ERR_FSAL_INVAL, EINVAL);
	sub = conf.subfsal.name ? lookup_fsal(conf.subfsal.name) : NULL;
	if (!sub)
		return fsalstat(ERR_FSAL_INVAL, EINVAL);
	status =
		sub->m_ops.update_export(sub, conf.subfsal.fsal_node, err, original->sub_export, m);
	fsal_put(sub);
	if (FSAL_IS_ERROR(status))
		return status;
	if (dcf_conf_read(node, path, &params) != 0 ||
	    dcf_conf_fault(node, path, fault, sizeof(fault)) != 0) {
		LogCrit(COMPONENT_CONFIG,
			"dontcache: export %s keeps its former parameters for the errors above",
			path);
		return fsalstat(ERR_FSAL_NO_ERROR, 0);
	}
	if (params.io_mode != e->params.io_mode) {
		LogCrit(COMPONENT_CONFIG,
			"dontcache: export %s: IO_Mode cannot change while the export is served; it "
			"stays %s until the server starts anew",
			path, dc_io_mode_names[e->params.io_mode]);
		params.io_mode = e->params.io_mode;
	}
	e->params = params;
	if (e->budget)
		dc_export_set_params(e->budget, &params);
	if ((e->faulty || fault[0]) && !dcf_fault(e, fault, msg))
		LogCrit(COMPONENT_CONFIG, "dontcache: export %s: %s", path, msg);
	announce(e, path, "updated");
	compare(e, path);
	return fsalstat(ERR_FSAL_NO_ERROR, 0);
}

/* The sub-FSAL's code must outlive its unloading: when the server stops, an executor may still be
 * inside its write2, waiting for a device. */
static void keep_loaded(struct fsal_module *sub)
{
	Dl_info info;

	if (dladdr((void *)sub->m_ops.create_export, &info) && info.dli_fname)
		dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
}

bool dcf_fault(struct dcf_export *e, const char *spec, char *msg)
{
	if (!e->faulty) {
		snprintf(
			msg, DC_FAULT_MSG,
			"faults cannot be injected: the export was not started with Fault_Injection");
		return false;
	}
	if (!dc_device_fault(dc_export_device(e->budget), spec, msg))
		return false;
	if (spec[0] == '\0' || strcasecmp(spec, "off") == 0 || strcasecmp(spec, "on") == 0) {
		LogCrit(COMPONENT_FSAL,
			"dontcache: fault injection is possible on the device of export %u; no rules now. "
			"Never serve anybody's data like this",
			e->export.export_id);
		return true;
	}
	LogCrit(COMPONENT_FSAL,
		"dontcache: FAULT INJECTION is on for the device of export %u: I/O fails on purpose: \"%s\". "
		"Never serve anybody's data like this",
		e->export.export_id, spec);
	return true;
}

int dcf_export_start(struct dcf_export *e, const char *path, const struct dc_params *p,
		     const char *fault)
{
	char msg[DC_FAULT_MSG];
	struct dc_device *dev;
	struct statfs fs;
	struct stat st;
	int err;

	e->params = *p;
	if (getrandom(&e->verifier, sizeof(e->verifier), 0) != sizeof(e->verifier))
		e->verifier = dcf_now(NULL) ^ (uint64_t)getpid() << 48;
	if (stat(path, &st) == 0)
		e->dev = st.st_dev;
	keep_loaded(e->export.sub_export->fsal);
	pthread_mutex_lock(&dcf.live_lock);
	glist_add_tail(&dcf.exports, &e->all);
	pthread_mutex_unlock(&dcf.live_lock);
	if (p->io_mode == DC_MODE_BUFFERED)
		return 0;
	/* Not O_PATH: open_by_handle_at(2) wants a real descriptor. */
	e->root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (e->root_fd < 0 || fstat(e->root_fd, &st) < 0)
		return -errno;
	e->dev = st.st_dev;
	if (fstatfs(e->root_fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC)
		LogWarn(COMPONENT_FSAL,
			"dontcache: export %s is on tmpfs: its pages are its storage, never dirty and "
			"never dropped, so the budget means nothing there. IO_Mode buffered does as well",
			path);
	if (fault[0])
		dev = dc_device_get_faulty(engine(), st.st_dev, NULL, &err);
	else
		dev = dc_device_get(engine(), st.st_dev, NULL, &err);
	if (!dev && err == -EBUSY)
		LogCrit(COMPONENT_FSAL,
			"dontcache: export %s: Fault_Injection must stand in the first export of its "
			"file system too",
			path);
	if (!dev)
		return err;
	e->budget = dc_export_new(dev, op_ctx->ctx_export->export_id, path, p);
	e->faulty = fault[0] != '\0';
	if (e->faulty && !dcf_fault(e, fault, msg))
		LogCrit(COMPONENT_FSAL, "dontcache: export %s: %s", path, msg);
	return 0;
}

MODULE_INIT void dcf_init(void)
{
	struct fsal_module *m = &dcf.module;
	struct fsal_staticfsinfo_t *info = &m->fs_info;

	info->maxfilesize = INT64_MAX;
	info->maxlink = _POSIX_LINK_MAX;
	info->maxnamelen = 1024;
	info->maxpathlen = 1024;
	info->no_trunc = true;
	info->chown_restricted = true;
	info->case_preserving = true;
	info->link_support = true;
	info->symlink_support = true;
	info->lock_support = true;
	info->named_attr = true;
	info->unique_handles = true;
	info->acl_support = FSAL_ACLSUPPORT_ALLOW;
	info->cansettime = true;
	info->homogenous = true;
	info->supported_attrs = ALL_ATTRIBUTES;
	info->maxread = FSAL_MAXIOSIZE;
	info->maxwrite = FSAL_MAXIOSIZE;
	info->link_supports_permission_checks = true;
	info->expire_time_parent = -1;
	if (register_fsal(m, myname, FSAL_MAJOR_VERSION, FSAL_MINOR_VERSION, FSAL_ID_NO_PNFS) !=
	    0) {
		fprintf(stderr, "FSAL_DONTCACHE could not register\n");
		return;
	}
	m->m_ops.create_export = create_export;
	m->m_ops.update_export = update;
	m->m_ops.init_config = init_config;
	dcf_obj_ops_init(&dcf.obj_ops);
	dcf_write_ops_init(&dcf.obj_ops);
}

MODULE_FINI void dcf_fini(void)
{
	dcf_control_stop();
	unregister_fsal(&dcf.module);
	/* The engine's threads go with the process; see export.c on what shutting down leaves. */
}
