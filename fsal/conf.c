/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * The export's FSAL block.
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

struct config_item *dcf_conf_items(void)
{
	size_t n = 3;

	for (size_t i = 0; i < dc_nr_params; i++, n++) {
		struct config_item noop = CONF_ITEM_NOOP("");

		noop.name = (char *)dc_params_table[i].name;
		if (n + 1 < sizeof(items) / sizeof(items[0]))
			items[n] = noop;
	}
	if (n >= sizeof(items) / sizeof(items[0]))
		LogFatal(COMPONENT_CONFIG, "dontcache: items[] is too small");
	return items;
}

/* Where a finding is to be reported. */
struct place {
	const struct config_node *block;
	const char *path;
	const struct config_node *line_of[20]; /* by index in dc_params_table */
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
