/* SPDX-License-Identifier: LGPL-3.0-or-later */
/*
 * Parameters: what is accepted, what is refused, and that a refusal says what was wrong and what
 * would be right, and changes nothing.
 */
#include "rig.h"

#include <stdio.h>
#include <string.h>

static struct dc_params p;
static char msg[DC_PARAM_MSG];

static bool set(const char *name, const char *text)
{
	const struct dc_param *param = dc_param_find(name);

	assert_non_null(param);
	memset(msg, 0, sizeof(msg));
	return dc_param_set(&p, param, text, msg);
}

static int setup(void **state)
{
	(void)state;
	dc_params_defaults(&p);
	return 0;
}

static void test_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < dc_nr_params; i++) {
		const struct dc_param *a = &dc_params_table[i];

		assert_true(a->min <= a->def && a->def <= a->max);
		assert_true(strlen(a->help) > 20);
		assert_int_equal(dc_param_get(&p, a), a->def);
		assert_ptr_equal(dc_param_find(a->name), a);
		for (size_t j = 0; j < i; j++) {
			assert_string_not_equal(a->name, dc_params_table[j].name);
			assert_int_not_equal(a->offset, dc_params_table[j].offset);
		}
	}
	assert_ptr_equal(dc_param_find("dirty_bytes"), dc_param_find("Dirty_Bytes"));
	assert_null(dc_param_find("Dirty_Byte"));
	assert_null(dc_param_find(""));
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = {
		{ "4194304", 4 * MiB }, { "4096K", 4 * MiB },
		{ "4096k", 4 * MiB },	{ "64M", 64 * MiB },
		{ "64MB", 64 * MiB },	{ "64MiB", 64 * MiB },
		{ "64mib", 64 * MiB },	{ "3G", 3 * GiB },
		{ "16T", 16ULL << 40 }, { "0x4000000", 0x4000000 },
		{ "4194305", 4194305 }, { "17592186044416", 1ULL << 44 },
	};
	static const char *const bad[] = {
		"",
		"M",
		"-1",
		"+64M",
		" 64M",
		"64 M",
		"64M ",
		"6.4M",
		"64MBs",
		"64Q",
		"64KM",
		"64iB",
		"1e9",
		"0x",
		"64B",
		"nan",
		"99999999999999999999",
		"18446744073709551615T",
		"\"64M\"",
		"64M;",
	};

	(void)state;
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(set("Dirty_Bytes", good[i].text));
		assert_int_equal(p.dirty_bytes, good[i].value);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct dc_params before = p;

		if (set("Dirty_Bytes", bad[i])) {
			print_error("accepted: \"%s\"\n", bad[i]);
			fail();
		}
		assert_memory_equal(&before, &p, sizeof(p));
		assert_non_null(strstr(msg, "Dirty_Bytes"));
		assert_non_null(strstr(msg, "not a value"));
		assert_non_null(strstr(msg, "4M to 16T"));
	}
}

static void test_ranges(void **state)
{
	struct dc_params before = p;

	(void)state;
	assert_false(set("Dirty_Bytes", "4194303"));
	assert_non_null(strstr(msg, "\"4194303\""));
	assert_non_null(strstr(msg, "out of range"));
	assert_non_null(strstr(msg, "4M to 16T"));
	assert_false(set("Dirty_Bytes", "17T"));
	assert_non_null(strstr(msg, "\"17T\""));
	assert_false(set("Dirty_Expire_Centisecs", "9"));
	assert_non_null(strstr(msg, "10 to 360000 centiseconds"));
	assert_false(set("Dirty_Expire_Centisecs", "360001"));
	assert_false(set("Dirty_Expire_Centisecs", "1K")); /* not a size */
	assert_false(set("Writeback_Window_Ms", "5"));
	assert_non_null(strstr(msg, "10 to 10000 milliseconds"));
	assert_false(set("Parked_Bytes", "1M"));
	assert_memory_equal(&before, &p, sizeof(p));

	/* Both ends of every numeric range are inside it, and one more is not. */
	for (size_t i = 0; i < dc_nr_params; i++) {
		const struct dc_param *a = &dc_params_table[i];
		char text[32];

		if (a->type != DC_T_BYTES && a->type != DC_T_NUMBER)
			continue;
		snprintf(text, sizeof(text), "%llu", (unsigned long long)a->min);
		assert_true(set(a->name, text));
		assert_int_equal(dc_param_get(&p, a), a->min);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)a->max);
		assert_true(set(a->name, text));
		assert_int_equal(dc_param_get(&p, a), a->max);
		snprintf(text, sizeof(text), "%llu", (unsigned long long)a->max + 1);
		assert_false(set(a->name, text));
		if (a->min > 0) {
			snprintf(text, sizeof(text), "%llu", (unsigned long long)a->min - 1);
			assert_false(set(a->name, text));
		}
	}
}

static void test_long_text_fits(void **state)
{
	char text[1000];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	for (size_t i = 0; i < dc_nr_params; i++) {
		assert_false(set(dc_params_table[i].name, text));
		assert_true(strlen(msg) < DC_PARAM_MSG - 1);
		assert_non_null(strstr(msg, "allowed: "));
	}
}

static void test_words(void **state)
{
	static const char *const yes[] = { "true", "YES", "On", "1" };
	static const char *const no[] = { "false", "No", "OFF", "0" };

	(void)state;
	for (int i = 0; i < 4; i++) {
		assert_true(set("Drop_Behind", no[i]));
		assert_int_equal(p.drop_behind, 0);
		assert_true(set("Drop_Behind", yes[i]));
		assert_int_equal(p.drop_behind, 1);
	}
	assert_false(set("Drop_Behind", "2"));
	assert_non_null(strstr(msg, "true or false"));
	assert_false(set("Drop_Behind", ""));
	assert_true(set("IO_Mode", "Buffered"));
	assert_int_equal(p.io_mode, DC_MODE_BUFFERED);
	assert_true(set("IO_Mode", "DONTCACHE"));
	assert_int_equal(p.io_mode, DC_MODE_DONTCACHE);
	assert_false(set("IO_Mode", "direct"));
	assert_non_null(strstr(msg, "buffered or dontcache"));
}

static void test_size_text(void **state)
{
	static const struct {
		uint64_t value;
		const char *text;
	} t[] = {
		{ 0, "0" },
		{ 1, "1" },
		{ 1023, "1023" },
		{ 1024, "1K" },
		{ 1536 * KiB, "1536K" },
		{ 4097, "4097" },
		{ 64 * MiB, "64M" },
		{ 3 * GiB, "3G" },
		{ 1ULL << 40, "1T" },
		{ 1ULL << 50, "1024T" },
		{ UINT64_MAX, "18446744073709551615" },
	};
	char buf[32];

	(void)state;
	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
		assert_string_equal(dc_size_text(t[i].value, buf), t[i].text);
}

/* ---- cross-checks ---- */

/* Values of the tests' own: what the defaults are is none of their business. */
static int setup_values(void **state)
{
	setup(state);
	p.dirty_bytes = 256 * MiB;
	p.dirty_background_bytes = 0;
	p.parked_bytes = 64 * MiB;
	return 0;
}

static struct {
	int errors, warnings;
	const struct dc_param *param;
	char msg[DC_PARAM_MSG];
} said;

static void say(void *arg, bool error, const struct dc_param *param, const char *text)
{
	assert_ptr_equal(arg, &said);
	said.errors += error;
	said.warnings += !error;
	said.param = param;
	snprintf(said.msg, sizeof(said.msg), "%s", text);
}

static int check(struct dc_machine m)
{
	memset(&said, 0, sizeof(said));
	return dc_params_check(&p, &m, say, &said);
}

static void test_cross_checks(void **state)
{
	struct dc_machine big = { 64 * GiB, 8 * GiB, 4 * GiB };

	(void)state;
	assert_int_equal(check(big), 0);
	assert_int_equal(said.warnings, 0);
	assert_int_equal(check((struct dc_machine){ 0 }), 0); /* unknown: no advice */
	assert_int_equal(said.warnings, 0);

	assert_int_equal(dc_params_background(&p), p.dirty_bytes / 4);
	p.dirty_background_bytes = p.dirty_bytes;
	assert_int_equal(dc_params_background(&p), p.dirty_bytes);
	assert_int_equal(check(big), 1);
	assert_int_equal(said.errors, 1);
	assert_string_equal(said.param->name, "Dirty_Background_Bytes");
	assert_non_null(strstr(said.msg, "256M is not below Dirty_Bytes = 256M"));
	assert_non_null(strstr(said.msg, "0 to 268435455"));
	p.dirty_background_bytes = p.dirty_bytes - 1;
	assert_int_equal(check(big), 0);

	/* In buffered mode none of this is used. */
	p.dirty_background_bytes = 2 * p.dirty_bytes;
	p.io_mode = DC_MODE_BUFFERED;
	assert_int_equal(check(big), 0);
	assert_int_equal(said.warnings + said.errors, 0);
}

static void test_machine_warnings(void **state)
{
	(void)state;
	assert_int_equal(check((struct dc_machine){ 64 * GiB, 200 * MiB, 100 * MiB }), 0);
	assert_int_equal(said.warnings, 1);
	assert_string_equal(said.param->name, "Dirty_Bytes");
	assert_non_null(strstr(said.msg, "256M"));
	assert_non_null(strstr(said.msg, "200 MiB"));
	assert_non_null(strstr(said.msg, "at most 100 MiB"));

	assert_int_equal(check((struct dc_machine){ 64 * GiB, 1 * GiB, 32 * MiB }), 0);
	assert_int_equal(said.warnings, 1);
	assert_string_equal(said.param->name, "Dirty_Background_Bytes");
	assert_non_null(strstr(said.msg, "64M"));
	assert_non_null(strstr(said.msg, "32 MiB"));

	assert_int_equal(check((struct dc_machine){ 512 * MiB, 0, 0 }), 0);
	assert_int_equal(said.warnings, 1);
	assert_string_equal(said.param->name, "Parked_Bytes");
	assert_non_null(strstr(said.msg, "512 MiB"));
}

static void test_this_machine(void **state)
{
	struct dc_machine m;

	(void)state;
	dc_machine_read(&m);
	assert_true(m.ram > 16 * MiB);
	assert_true(m.kernel_dirty <= m.ram);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_table, setup),
		cmocka_unit_test_setup(test_sizes, setup),
		cmocka_unit_test_setup(test_ranges, setup),
		cmocka_unit_test_setup(test_long_text_fits, setup),
		cmocka_unit_test_setup(test_words, setup),
		cmocka_unit_test(test_size_text),
		cmocka_unit_test_setup(test_cross_checks, setup_values),
		cmocka_unit_test_setup(test_machine_warnings, setup_values),
		cmocka_unit_test(test_this_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
