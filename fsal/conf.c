/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The export's FSAL block, and the server's DONTCACHE block.
 *
 * Ganesha's own parser would do for plain numbers, but it removes a live export when a reload brings
 * a bad value, and knows neither "64M" nor what a value means beside another. So it is told to pass
 * our parameters over, and they are read here, from its parse tree, by the engine's table: a
 * message always names file, line, value and allowed range.
 */
#include "fsal_dontcache.h"

/* For tests and rehearsals, and so in no table: see dontcache/fault.h. */
#define FAULT_NAME "Fault_Injection"

static struct config_item sub_items[] = {
	CONF_ITEM_STR("name", 1, 10, NULL, subfsal_args, name),
	CONFIG_EOL,
};

/* "name", our parameters, the inner FSAL block, end. */
static struct config_item items[24] = {
	CONF_ITEM_NOOP("name"),
	CONF_RELAX_BLOCK("FSAL", sub_items, noop_conf_init, subfsal_commit, dcf_conf, subfsal),
	CONF_ITEM_NOOP(FAULT_NAME),
};

struct config_block dcf_export_block = {
	.dbus_interface_name = "org.ganesha.nfsd.config.fsal.dontcache-export%d",
	.blk_desc.name = "FSAL",
	.blk_desc.type = CONFIG_BLOCK,
	.blk_desc.u.blk.init = noop_conf_init,
	.blk_desc.u.blk.params = items,
	.blk_desc.u.blk.commit = noop_conf_commit,
};

/* Control_Socket, our parameters, end. */
struct config_item dcf_server_items[8] = {
	CONF_ITEM_PATH("Control_Socket", 1, 107, NULL, dcf_server_conf, control_socket),
};

static void pass_over(struct config_item *to, size_t n, size_t room, const struct dc_param *table,
		      size_t nr)
{
	for (size_t i = 0; i < nr; i++, n++) {
		struct config_item noop = CONF_ITEM_NOOP("");

		noop.name = (char *)table[i].name;
		if (n + 1 < room)
			to[n] = noop;
	}
	if (n >= room)
		LogFatal(COMPONENT_CONFIG, "dontcache: no room for all parameters");
}

void dcf_conf_items(void)
{
	pass_over(items, 3, sizeof(items) / sizeof(items[0]), dc_params_table, dc_nr_params);
	pass_over(dcf_server_items, 1, sizeof(dcf_server_items) / sizeof(dcf_server_items[0]),
		  dc_server_table, dc_nr_server_params);
}

/* Where a finding is to be reported. */
struct place {
	const struct config_node *block;
	const char *path;
	const struct config_node *line_of[24]; /* by index in dc_params_table */
};

static void say(void *arg, bool error, const struct dc_param *param, const char *msg)
{
	struct place *at = arg;
	const struct config_node *node = at->line_of[param - dc_params_table];

	if (!node)
		node = at->block;
	if (error)
		LogCrit(COMPONENT_CONFIG, "dontcache: %s:%d: export %s: %s", node->filename,
			node->linenumber, at->path, msg);
	else
		LogWarn(COMPONENT_CONFIG, "dontcache: %s:%d: export %s: %s", node->filename,
			node->linenumber, at->path, msg);
}

/* The text of a statement's value: "~5" and "-5" keep their sign, quotes are gone. */
static void value_text(const struct config_node *stmt, char *buf, size_t len)
{
	const struct config_node *term;

	if (glist_empty(&((struct config_node *)stmt)->u.nterm.sub_nodes)) {
		buf[0] = '\0';
		return;
	}
	term = glist_entry(stmt->u.nterm.sub_nodes.next, struct config_node, node);
	snprintf(buf, len, "%s%s", term->u.term.op_code ? term->u.term.op_code : "",
		 term->u.term.varvalue ? term->u.term.varvalue : "");
}

int dcf_conf_fault(void *node, const char *path, char *spec, size_t len)
{
	struct config_node *block = node;
	struct dc_fault *trial;
	struct glist_head *g;
	char msg[DC_FAULT_MSG];
	int errors = 0;

	spec[0] = '\0';
	glist_for_each(g, &block->u.nterm.sub_nodes) {
		struct config_node *stmt = glist_entry(g, struct config_node, node);

		if (stmt->type != TYPE_STMT || strcasecmp(stmt->u.nterm.name, FAULT_NAME) != 0)
			continue;
		value_text(stmt, spec, len);
		if (spec[0] == '\0')
			strcpy(spec, "on");
		trial = dc_fault_new(dcf_now, NULL);
		if (!dc_fault_set(trial, spec, msg)) {
			LogCrit(COMPONENT_CONFIG, "dontcache: %s:%d: export %s: %s", stmt->filename,
				stmt->linenumber, path, msg);
			errors++;
		}
		dc_fault_free(trial);
	}
	return errors;
}

int dcf_conf_server(void *node, struct dc_server_params *p, bool *there)
{
	const struct config_node *root = node;
	struct glist_head *g, *s;
	char msg[DC_PARAM_MSG], text[80];
	int errors = 0;

	*there = false;
	while (root->u.nterm.parent)
		root = root->u.nterm.parent;
	glist_for_each(g, &((struct config_node *)root)->u.nterm.sub_nodes) {
		struct config_node *block = glist_entry(g, struct config_node, node);

		if (block->type != TYPE_BLOCK || strcasecmp(block->u.nterm.name, "DONTCACHE") != 0)
			continue;
		*there = true;
		glist_for_each(s, &block->u.nterm.sub_nodes) {
			struct config_node *stmt = glist_entry(s, struct config_node, node);
			const struct dc_param *param;

			param = stmt->type == TYPE_STMT ? dc_server_param_find(stmt->u.nterm.name) :
							  NULL;
			if (!param)
				continue;
			value_text(stmt, text, sizeof(text));
			if (dc_param_set(p, param, text, msg))
				continue;
			LogCrit(COMPONENT_CONFIG, "dontcache: %s:%d: DONTCACHE: %s", stmt->filename,
				stmt->linenumber, msg);
			errors++;
		}
	}
	return errors;
}

int dcf_conf_read(void *node, const char *path, struct dc_params *p)
{
	struct config_node *block = node;
	struct place at = { .block = block, .path = path };
	struct dc_machine machine;
	struct glist_head *g;
	char msg[DC_PARAM_MSG], text[80];
	int errors = 0;

	dc_params_defaults(p);
	glist_for_each(g, &block->u.nterm.sub_nodes) {
		struct config_node *stmt = glist_entry(g, struct config_node, node);
		const struct dc_param *param;

		if (stmt->type != TYPE_STMT)
			continue;
		param = dc_param_find(stmt->u.nterm.name);
		if (!param)
			continue;
		at.line_of[param - dc_params_table] = stmt;
		value_text(stmt, text, sizeof(text));
		if (text[0] == '\0')
			LogCrit(COMPONENT_CONFIG,
				"dontcache: %s:%d: %s has no value that Ganesha could read; a size with a "
				"suffix must stand in quotes: \"64M\"",
				stmt->filename, stmt->linenumber, param->name);
		if (!dc_param_set(p, param, text, msg)) {
			say(&at, true, param, msg);
			errors++;
		}
	}
	if (errors)
		return errors;
	dc_machine_read(&machine);
	return dc_params_check(p, &machine, say, &at);
}
