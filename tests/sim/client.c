/* SPDX-License-Identifier: LGPL-3.0-or-later */
/* Closed-loop clients: each keeps `depth` writes on their way, the next one leaves when a reply came. */
#include <stdlib.h>

#include "sim.h"

/* The file that is written next. Descriptors are numbers that no process has. */
static void next_file(struct sim_client *c)
{
	struct sim_clients *g = c->group;
	struct {
		unsigned int group, client, file;
	} key;

	if (c->file && c->offset < g->size)
		return;
	if (c->file) {
		dc_file_put(c->file);
		c->file_no = (c->file_no + 1) % g->files;
	}
	key.group = (unsigned int)(g - g->sim->clients);
	key.client = c->id;
	key.file = c->file_no;
	c->file = dc_file_get(c->exp->exp, &key, sizeof(key));
	c->offset = 0;
}

static void begin(struct sim_write *w)
{
	struct sim *s = w->client->group->sim;

	while (!dc_write_begin(w->file)) {
		dc_file_set_fd(w->file, (int)s->next_fd);
		s->next_fd = s->next_fd + 1 < (1u << 30) ? s->next_fd + 1 : 1u << 29;
	}
}

static void record(struct sim_write *w, uint64_t pages)
{
	struct sim_client *c = w->client;
	struct sim_clients *g = c->group;
	struct sim *s = g->sim;
	uint64_t now = s->now;

	dc_write_done(w->file, w->offset, g->block, pages, DC_CLIENT(c->id + 1, 1),
		      dc_file_errors(w->file), false);
	dc_file_put(w->file);
	w->file = NULL;
	if (now >= s->from && now < s->to) {
		c->bytes += g->block;
		c->window_bytes += g->block;
		sim_latency(g, now - w->issued);
		if (g->last_done > s->from)
			g->gap_max = dc_max_u64(g->gap_max, now - g->last_done);
	}
	g->last_done = now;
	sim_at(s, now + g->rtt_ns + g->think_ns, SIM_ISSUE, w);
}

static void run(struct dc_waiter *waiter, int status)
{
	struct sim_write *w = container_of_dc(waiter, struct sim_write, w);

	if (status != 0) { /* the run is over */
		dc_file_put(w->file);
		w->file = NULL;
		return;
	}
	begin(w);
	record(w, w->w.pages);
}

void sim_issue(struct sim_write *w)
{
	struct sim_client *c = w->client;
	struct sim_clients *g = c->group;
	struct sim *s = g->sim;
	uint64_t pages;

	if (s->now >= g->stop || s->ended)
		return;
	if (c->held) {
		c->idle[c->nr_idle++] = w;
		return;
	}
	next_file(c);
	w->file = c->file;
	dc_file_hold(w->file);
	w->offset = g->random ? sim_random(s) % (g->size / g->block) * g->block : c->offset;
	c->offset += g->block;
	w->issued = s->now;
	pages = dc_write_pages(w->offset, g->block);
	begin(w);
	if (dc_admit(c->exp->exp, pages)) {
		record(w, pages);
		return;
	}
	dc_write_unpin(w->file);
	w->w.pages = pages;
	w->w.bytes = g->block;
	w->w.client = (uint64_t)(g - s->clients) << 32 | c->id;
	w->w.connection = c;
	w->w.run = run;
	switch (dc_park(c->exp->exp, &w->w)) {
	case DC_ADMITTED:
		begin(w);
		record(w, pages);
		break;
	case DC_PARKED:
		break;
	case DC_PARKED_HOLD:
		c->held = true;
		break;
	case DC_REFUSED:
		s->refused++;
		dc_file_put(w->file);
		w->file = NULL;
		sim_at(s, s->now + 100 * DC_NS_PER_MS, SIM_ISSUE, w);
		break;
	}
}

void sim_resume(struct sim_client *c)
{
	c->held = false;
	while (c->nr_idle > 0)
		sim_at(c->group->sim, c->group->sim->now, SIM_ISSUE, c->idle[--c->nr_idle]);
}

void sim_client_start(struct sim *s, struct sim_clients *group, struct sim_client *c)
{
	c->group = group;
	c->write = dc_zalloc(group->depth * sizeof(*c->write));
	c->idle = dc_zalloc(group->depth * sizeof(struct sim_write *));
	for (unsigned int i = 0; i < group->depth; i++) {
		c->write[i].client = c;
		/* Not all in one instant. */
		sim_at(s, group->start + sim_random(s) % DC_NS_PER_MS, SIM_ISSUE, &c->write[i]);
	}
}

void sim_client_end(struct sim_client *c)
{
	if (c->file)
		dc_file_put(c->file);
	free(c->idle);
	free(c->write);
}
