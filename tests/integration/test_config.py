#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-3.0-or-later
"""Configuration: a bad value is named in the log with file, line, value and allowed range; its export's
neighbours are served; on SIGHUP a bad value leaves the old limits in force and the export up, and good ones
take effect while the server runs."""

import os
import re

from support import *                                   # noqa: F403
from harness.testing import main

# What is wrong, and the parameter whose line must be named.
BAD = {
    'below_minimum': ({'Dirty_Bytes': '1M'}, 'Dirty_Bytes'),
    'background_not_below_limit': ({'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '16M'}, 'Dirty_Background_Bytes'),
    'background_above_limit': ({'Dirty_Bytes': '16M', 'Dirty_Background_Bytes': '32M'}, 'Dirty_Background_Bytes'),
    'unknown_suffix': ({'Dirty_Bytes': '64Q'}, 'Dirty_Bytes'),
    'negative': ({'Dirty_Bytes': '-67108864'}, 'Dirty_Bytes'),
    'not_a_number': ({'Dirty_Expire_Centisecs': 'soon'}, 'Dirty_Expire_Centisecs'),
    'too_large': ({'Parked_Bytes': '99999999999999999999'}, 'Parked_Bytes'),
    'unknown_mode': ({'IO_Mode': 'turbo'}, 'IO_Mode'),
    'not_a_bool': ({'Drop_Behind': 'perhaps'}, 'Drop_Behind'),
}


def two_exports(first):
    """Export 1 with the parameters under test, export 2 a plain good one."""
    def exports(disk):
        good = os.path.join(disk.mountpoint, 'good')
        os.makedirs(good, exist_ok=True)
        return [Export(EXPORT_ID, disk.export_dir, PSEUDO, 'dontcache', dict(first)),
                Export(2, good, '/good', 'dontcache', {'Dirty_Bytes': '64M'})]
    return exports


def works(bed, export=PSEUDO, version='3', name='f'):
    with bed.connect(version, export=export) as client, client.open(name, create=True) as f:
        f.write(0, b'served')
        f.commit()
        equal(f.read(0, 100).data, b'served', 'data of export ' + export)


def line_of(path, parameter, value):
    """The number of the line of the configuration file that sets parameter to value."""
    with open(path, encoding='utf-8') as conf:
        for number, line in enumerate(conf, 1):
            name, _, rest = line.partition('=')
            if name.strip() == parameter and rest.strip().strip(';').strip('"') == str(value):
                return number
    raise AssertionError('%s = %s is not in %s' % (parameter, value, path))


def says_what_is_wrong(log, conf_path, parameter, value):
    """A line of the log with file, line number, parameter, value and a range or list of what is allowed."""
    number = line_of(conf_path, parameter, value)
    about = [line for line in log.splitlines() if parameter in line and str(value) in line]
    assert about, 'the log does not mention %s and %s\n%s' % (parameter, value, log[-3000:])
    for line in about:
        text = line.partition(parameter)[0] + line
        where = re.search(re.escape(os.path.basename(conf_path)) + r'\D{0,12}%d\b' % number, text)
        allowed = re.search(r'range|between|at least|at most|below|less than|one of|allowed|expected|must be', line, re.I)
        if where and allowed:
            return line
    raise AssertionError('no line of the log has file:%d, %s, %s and what is allowed:\n%s' % (
        number, parameter, value, '\n'.join(about)))


def refused_at_start(case):
    requires_plugin()
    params, parameter = BAD[case]
    with served(exports=two_exports(params), strict=False) as bed:
        line = says_what_is_wrong(bed.server.log_text(), bed.server.conf_path, parameter, params[parameter])
        print('    ' + line.partition(' :')[2][-300:], flush=True)
        works(bed, '/good')
        works(bed, '/good', '4.1')


def refused_on_reload(case):
    """The old limits stay, whatever the new ones were; the export serves, before, during and after."""
    requires_plugin()
    params, parameter = BAD[case]
    first = {'Dirty_Bytes': '48M', 'Dirty_Background_Bytes': '12M'}
    with served(exports=two_exports(first)) as bed:
        old = bed.stats()['limits']
        equal(old['dirty_bytes'], 48 * MiB, 'Dirty_Bytes at start')
        keeper = bed.connect('4.0')
        f = keeper.open('held open', create=True)
        f.write(0, b'before')
        bed.server.rewrite_conf(two_exports({**first, **params})(bed.disk))
        bed.server.hup()
        wait_until(lambda: parameter in bed.server.log_text() and str(params[parameter]) in bed.server.log_text(),
                   5, what='a line about %s in the log' % parameter)
        time.sleep(0.3)
        line = says_what_is_wrong(bed.server.log_text(), bed.server.conf_path, parameter, params[parameter])
        print('    ' + line.partition(' :')[2][-300:], flush=True)
        equal(bed.stats()['limits'], old, 'limits after a bad reload')
        equal(bed.stats()['mode'], 'dontcache', 'mode after a bad reload')
        f.write(6, b' and after')
        f.commit()
        equal(f.read(0, 100).data, b'before and after', 'the file held open')
        works(bed)
        works(bed, '/good')
        # And it is not stuck: the next good reload is taken.
        bed.server.rewrite_conf(two_exports({'Dirty_Bytes': '96M', 'Dirty_Background_Bytes': '12M'})(bed.disk))
        bed.server.hup()
        wait_until(lambda: bed.stats()['limits']['dirty_bytes'] == 96 * MiB, 3, what='the good limit after the bad one')
        works(bed, name='g')


for _case in BAD:
    globals()['test_start_' + _case] = lambda case=_case: refused_at_start(case)
    globals()['test_reload_' + _case] = lambda case=_case: refused_on_reload(case)


def test_suffixes_and_defaults():
    """K, M and G are accepted in either case; what is not given has a default within its own limits."""
    requires_plugin()
    given = {'Dirty_Bytes': '1G', 'Dirty_Background_Bytes': '131072K', 'Parked_Bytes': '96m'}
    with served(exports=two_exports(given)) as bed:
        limits = bed.stats()['limits']
        equal(limits['dirty_bytes'], GiB, 'Dirty_Bytes = 1G')
        equal(limits['dirty_background_bytes'], 128 * MiB, 'Dirty_Background_Bytes = 131072K')
        equal(limits['parked_bytes'], 96 * MiB, 'Parked_Bytes = 96m')
        other = bed.server.export_stats(2)['limits']
        equal(other['dirty_bytes'], 64 * MiB, 'Dirty_Bytes of the other export')
        assert other['dirty_background_bytes'] < other['dirty_bytes'], \
            'default background level %(dirty_background_bytes)d, limit %(dirty_bytes)d' % other
        assert other['parked_bytes'] > 0 and other['dirty_expire_centisecs'] > 0 and other['writeback_window_ms'] > 0
        works(bed)


def test_reload_good_limits():
    """New limits on SIGHUP are in force within two seconds, for every parameter that may change."""
    requires_plugin()
    first = {'Dirty_Bytes': '48M', 'Dirty_Background_Bytes': '12M'}
    new = {'Dirty_Bytes': '128M', 'Dirty_Background_Bytes': '24M', 'Dirty_Expire_Centisecs': 777,
           'Writeback_Window_Ms': 33, 'Parked_Bytes': '80M', 'Drop_Behind': False}
    want = {'dirty_bytes': 128 * MiB, 'dirty_background_bytes': 24 * MiB, 'dirty_expire_centisecs': 777,
            'writeback_window_ms': 33, 'parked_bytes': 80 * MiB, 'drop_behind': False}
    with served(exports=two_exports(first)) as bed:
        client = bed.connect('3')
        f = client.open('f', create=True)
        f.write(0, b'before')
        bed.server.rewrite_conf(two_exports(new)(bed.disk))
        bed.server.hup()
        with contextlib.suppress(AssertionError):
            wait_until(lambda: all(bed.stats()['limits'][k] == v for k, v in want.items()), 2)
        limits = bed.stats()['limits']
        equal({k: limits[k] for k in want}, want, 'limits after the reload')
        equal(bed.server.export_stats(2)['limits']['dirty_bytes'], 64 * MiB, 'the other export')
        f.write(6, b'!')
        f.commit()
        equal(f.read(0, 100).data, b'before!', 'the file')


def test_lower_limit_under_load():
    """A limit lowered while more than that is dirty: the export comes down to it and stays there."""
    requires_plugin()
    requires_slow_device()
    from nfsraw.load import Stream, run, sequential
    from nfsraw.pattern import Pattern
    from harness.kernel import Sampler, requires_cachestat
    requires_cachestat()
    first = {'Dirty_Bytes': '96M', 'Dirty_Background_Bytes': '64M', 'Dirty_Expire_Centisecs': 300}
    with served(exports=two_exports(first), write_bps=60 * MiB) as bed:
        streams = [Stream(bed.connect('3').open('f%d' % i, create=True), sequential(Pattern(i), 200 * MiB), depth=16)
                   for i in range(4)]
        end = time.monotonic() + 1.5
        run(streams, until=lambda: time.monotonic() > end, drain=False)
        bed.server.rewrite_conf(two_exports({**first, 'Dirty_Bytes': '24M', 'Dirty_Background_Bytes': '8M'})(bed.disk))
        bed.server.hup()
        end = time.monotonic() + 5          # 96 MiB at 60 MiB/s, and the reload itself
        run(streams, until=lambda: time.monotonic() > end, drain=False)
        equal(bed.stats()['limits']['dirty_bytes'], 24 * MiB, 'the lowered limit')
        before = sum(s.acked for s in streams)
        end = time.monotonic() + 1.5
        with Sampler(bed.export_dir, 0.01) as kernel:
            run(streams, until=lambda: time.monotonic() > end, drain=False)
        no_errors(streams)
        assert sum(s.acked for s in streams) > before, 'no write was done any more under the lowered limit'
        assert kernel.peak_dirty_writeback <= 24 * MiB, 'still %s dirty + writeback' % mb(kernel.peak_dirty_writeback)
        bed.kill_clients()
        bed.disk.set_write_bps(None)
        bed.settle()


if __name__ == '__main__':
    main(globals())
