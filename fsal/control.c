/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The control socket: a Unix socket that answers "stats" with one JSON document and closes.
 *
 * It works where no D-Bus runs (containers, tests), and reading it costs writers nothing. Root
 * only: the socket is made with mode 0600.
 */
#include "fsal_dontcache.h"

#include <poll.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct {
	int fd, stop[2];
	char path[108];
	pthread_t thread;
	bool running;
} control = { .fd = -1, .stop = { -1, -1 } };

/* A string that grows. */
struct text {
	char *buf;
	size_t len, cap;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(struct text *t, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (t->cap - t->len < 512) {
		t->cap = t->cap * 2 + 4096;
		t->buf = gsh_realloc(t->buf, t->cap);
	}
	va_start(ap, fmt);
	n = vsnprintf(t->buf + t->len, t->cap - t->len, fmt, ap);
	va_end(ap);
	if (n > 0 && (size_t)n < t->cap - t->len)
		t->len += n;
}

static void put_string(struct text *t, const char *s)
{
	put(t, "\"");
	for (; *s; s++) {
		unsigned char c = *s;

		if (c == '"' || c == '\\')
			put(t, "\\%c", c);
		else if (c < 0x20)
			put(t, "\\u%04x", c);
		else
			put(t, "%c", c);
	}
	put(t, "\"");
}

static void put_params(struct text *t, const struct dc_params *p)
{
	put(t, "\"limits\":{");
	for (size_t i = 0; i < dc_nr_params; i++) {
		const struct dc_param *param = &dc_params_table[i];
		uint64_t v = dc_param_get(p, param);
		char name[64];
		size_t n;

		for (n = 0; param->name[n] && n + 1 < sizeof(name); n++)
			name[n] = (char)tolower(param->name[n]);
		name[n] = '\0';
		if (param->offset == offsetof(struct dc_params, dirty_background_bytes))
			v = dc_params_background(p);
		if (param->type == DC_T_MODE)
			put(t, "%s\"%s\":\"%s\"", i ? "," : "", name, dc_io_mode_names[v]);
		else if (param->type == DC_T_BOOL)
			put(t, "%s\"%s\":%s", i ? "," : "", name, v ? "true" : "false");
		else
			put(t, "%s\"%s\":%" PRIu64, i ? "," : "", name, v);
	}
	put(t, "}");
}

static void put_export(struct text *t, struct dcf_export *e)
{
	struct dc_export_stats s;

	put(t, "{\"id\":%u,\"mode\":\"%s\",", e->export.export_id,
	    dc_io_mode_names[e->params.io_mode]);
	put_params(t, &e->params);
	if (!e->budget) {
		put(t, "}");
		return;
	}
	dc_export_stats(e->budget, &s);
	put(t, ",\"path\":");
	put_string(t, s.path);
	put(t,
	    ",\"dirty\":%" PRIu64 ",\"writeback\":%" PRIu64 ",\"reserved\":%" PRIu64
	    ",\"used\":%" PRIu64,
	    s.dirty, s.writeback, s.reserved, s.used);
	put(t,
	    ",\"usable\":%" PRIu64 ",\"background\":%" PRIu64 ",\"freerun\":%" PRIu64
	    ",\"setpoint\":%" PRIu64 ",\"completion_rate\":%" PRIu64 ",\"admission_rate\":%" PRIu64,
	    s.usable, s.background, s.freerun, s.setpoint, s.completion_rate, s.admission_rate);
	put(t, ",\"files\":%" PRIu64 ",\"dirty_files\":%" PRIu64 ",\"unsynced_files\":%" PRIu64,
	    s.files, s.dirty_files, s.unsynced_files);
	put(t,
	    ",\"parked\":%" PRIu64 ",\"parked_bytes\":%" PRIu64 ",\"parked_connections\":%" PRIu64
	    ",\"held_connections\":%" PRIu64,
	    s.parked, s.parked_bytes, s.parked_connections, s.held);
	for (int c = 0; c < DC_NR_COUNTERS; c++)
		put(t, ",\"%s\":%" PRIu64, dc_counter_info[c].name, s.counters[c]);
	put(t, "}");
}

struct device_arg {
	struct text *t;
	bool more;
};

static void put_device(void *arg, const struct dc_device_stats *s)
{
	struct device_arg *a = arg;

	put(a->t,
	    "%s{\"dev\":\"%u:%u\",\"backend\":\"%s\",\"bandwidth\":%" PRIu64
	    ",\"writeback\":%" PRIu64 ",\"window\":%" PRIu64 "}",
	    a->more ? "," : "", (unsigned int)(s->id >> 8 & 0xfff),
	    (unsigned int)(s->id & 0xff) | (unsigned int)(s->id >> 12 & 0xfff00), s->backend,
	    s->bandwidth, s->writeback, s->window);
	a->more = true;
}

static void put_stats(struct text *t)
{
	struct device_arg a = { .t = t };
	struct glist_head *g;
	bool more = false;

	put(t, "{\"version\":\"" DC_VERSION "\",\"exports\":[");
	pthread_mutex_lock(&dcf.live_lock);
	glist_for_each(g, &dcf.exports) {
		if (more)
			put(t, ",");
		put_export(t, glist_entry(g, struct dcf_export, all));
		more = true;
	}
	pthread_mutex_unlock(&dcf.live_lock);
	put(t, "],\"devices\":[");
	if (dcf.engine)
		dc_engine_devices(dcf.engine, put_device, &a);
	put(t, "]");
	if (dcf.engine) {
		struct dc_pool_stats s;

		dc_pool_stats(dcf.engine, &s);
		put(t,
		    ",\"server\":{\"dirty_bytes\":%" PRIu64 ",\"granted\":%" PRIu64
		    ",\"limits\":%" PRIu64 "}",
		    s.dirty_bytes, s.granted, s.limits);
	}
	put(t, "}\n");
}

/* fault EXPORT_ID RULES. The answer is one object, with "ok" or "error". */
static void put_fault(struct text *t, char *args)
{
	char *spec, msg[DC_FAULT_MSG] = "no such export";
	unsigned long id = strtoul(args, &spec, 10);
	struct glist_head *g;
	bool ok = false;

	spec += strspn(spec, " ");
	if (*spec == '\0') {
		put(t, "{\"error\":\"rules are missing; 'off' ends them all\"}\n");
		return;
	}
	pthread_mutex_lock(&dcf.live_lock);
	glist_for_each(g, &dcf.exports) {
		struct dcf_export *e = glist_entry(g, struct dcf_export, all);

		if (e->export.export_id == id)
			ok = dcf_fault(e, spec, msg);
	}
	pthread_mutex_unlock(&dcf.live_lock);
	if (ok) {
		put(t, "{\"ok\":true}\n");
		return;
	}
	for (char *c = msg; *c; c++) /* it may quote the rule */
		if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ')
			*c = '\'';
	put(t, "{\"error\":\"%s\"}\n", msg);
}

static void answer(int fd)
{
	struct timeval patience = { .tv_sec = 2 };
	struct text t = { 0 };
	char cmd[512];
	size_t n = 0, at = 0;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	while (n < sizeof(cmd) - 1) {
		ssize_t got = recv(fd, cmd + n, sizeof(cmd) - 1 - n, 0);

		if (got <= 0)
			break;
		n += got;
		if (memchr(cmd, '\n', n))
			break;
	}
	cmd[n] = '\0';
	cmd[strcspn(cmd, "\r\n")] = '\0';
	if (strcmp(cmd, "stats") == 0)
		put_stats(&t);
	else if (strncmp(cmd, "fault ", 6) == 0)
		put_fault(&t, cmd + 6);
	else
		put(&t, "{\"error\":\"unknown command; known: stats, fault EXPORT_ID RULES\"}\n");
	while (at < t.len) {
		ssize_t put_now = send(fd, t.buf + at, t.len - at, MSG_NOSIGNAL);

		if (put_now <= 0)
			break;
		at += put_now;
	}
	gsh_free(t.buf);
}

static void *control_thread(void *arg)
{
	struct pollfd fds[2] = { { .fd = control.fd, .events = POLLIN },
				 { .fd = control.stop[0], .events = POLLIN } };

	(void)arg;
	SetNameFunction("dc_control");
	for (;;) {
		int fd;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			break;
		if (fds[1].revents)
			break;
		fd = accept4(control.fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		answer(fd);
		close(fd);
	}
	return NULL;
}

int dcf_control_start(const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	mode_t mask;
	int rc;

	if (control.running)
		return 0;
	if (strlen(path) >= sizeof(addr.sun_path)) {
		LogCrit(COMPONENT_FSAL, "dontcache: Control_Socket %s: longer than %zu bytes", path,
			sizeof(addr.sun_path) - 1);
		return -ENAMETOOLONG;
	}
	strcpy(addr.sun_path, path);
	strcpy(control.path, path);
	control.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	unlink(path); /* of a server that was killed */
	mask = umask(0177);
	rc = control.fd < 0 ? -1 : bind(control.fd, (struct sockaddr *)&addr, sizeof(addr));
	umask(mask);
	if (rc < 0 || listen(control.fd, 16) < 0 || pipe2(control.stop, O_CLOEXEC) < 0 ||
	    pthread_create(&control.thread, NULL, control_thread, NULL) != 0) {
		rc = -errno;
		LogCrit(COMPONENT_FSAL,
			"dontcache: Control_Socket %s: %s; exports are served without", path,
			strerror(errno));
		if (control.fd >= 0)
			close(control.fd);
		control.fd = -1;
		return rc ? rc : -EIO;
	}
	control.running = true;
	return 0;
}

void dcf_control_stop(void)
{
	if (!control.running)
		return;
	control.running = false;
	if (write(control.stop[1], "x", 1) == 1)
		pthread_join(control.thread, NULL);
	close(control.fd);
	close(control.stop[0]);
	close(control.stop[1]);
	unlink(control.path);
}
