"""Run every command block of README.md, in order, in a fresh copy of the project and an empty home directory.

The outside world is played by stand-ins on PATH and a page server on loopback. A block that is to end with another
exit code than 0 has `<!-- exit N -->` on the line before it. The settings make the gaps short; nothing else differs
from what a reader does. Then the shell loop that the README had made meets each kind of refusal.
"""
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BLOCK = re.compile(r'^(?:<!-- exit (\d+) -->\n)?```(\w*)\n(.*?)^```$', re.MULTILINE | re.DOTALL)
SHOWN = ('text', 'json')  # to look at, not to run
SECONDS = 120

CURL = """#!/bin/bash
echo curl >>"$CALLED"
words=()
for word in "$@"; do
  case $word in https://*) word="http://127.0.0.1:$PAGES_PORT/${word#https://}" ;; esac
  words+=("$word")
done
exec REAL_CURL "${words[@]}"
"""
SSH = """#!/bin/bash
echo ssh >>"$CALLED"
[ "$1" = -n ] && shift
shift  # the host
exec bash -c "$*"
"""
NAMED = '#!/bin/sh\necho NAME >>"$CALLED"\n[ $# -gt 0 ]\n'
HTTPS = """
import os, urllib.request
class Loopback(urllib.request.HTTPSHandler):
    def https_open(self, request):
        address = 'http://127.0.0.1:%s/%s%s' % (os.environ['PAGES_PORT'], request.host, request.selector)
        return urllib.request.urlopen(urllib.request.Request(address, request.data, dict(request.header_items())))
urllib.request.install_opener(urllib.request.build_opener(Loopback))
"""


REFUSALS = {  # record: what the site answers, then how the loop has to end and what the gate's log must say
    'wall': (403, {'cf-mitigated': 'challenge'}, 'just a moment', 3, 'HUMAN lane-1 cloudflare at record wall'),
    'fast': (429, {'Retry-After': '1800'}, 'too many requests', 0, 'HIT lane-1 HTTP 429 /record/fast retry-after=1800'),
    'mine': (403, {}, 'not for you', 0, 'DENIED lane-1 HTTP 403 /record/mine'),
    'dead': (401, {}, 'sign in', 4, 'DEAD lane-1 HTTP 401 /record/dead'),
}


class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if 'Content-Length' in self.headers:
            self.rfile.read(int(self.headers['Content-Length']))
        record = self.path.rpartition('/')[2]
        code, headers, text = REFUSALS.get(record, (200, {}, 'record ' + record))[:3]
        body = text.encode()
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815  the name that http.server looks for

    def log_message(self, *arguments):
        pass


def write(path, text, mode=0o644):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    os.chmod(path, mode)


def prepare(work, port):
    """Return the environment for the blocks: a copy of the project, stand-ins, an empty home."""
    for name in ('home', 'stubs', 'site'):
        os.mkdir(os.path.join(work, name))
    tracked = subprocess.run(['git', 'ls-files', '-z'], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    for name in tracked.decode().split('\0')[:-1]:
        target = os.path.join(work, 'project', name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(os.path.join(ROOT, name), target)
    stubs = {'curl': CURL.replace('REAL_CURL', str(shutil.which('curl'))), 'ssh': SSH,
             'osascript': NAMED.replace('NAME', 'osascript'), 'notify-send': NAMED.replace('NAME', 'notify-send')}
    for name, text in stubs.items():
        write(os.path.join(work, 'stubs', name), text, 0o755)
    write(os.path.join(work, 'site', 'sitecustomize.py'), HTTPS)
    home = os.path.join(work, 'home')
    path = os.pathsep.join([os.path.join(work, 'stubs'), os.path.join(home, '.local', 'bin'), os.environ['PATH']])
    return stubs, {**os.environ, 'HOME': home, 'PATH': path, 'PYTHONPATH': os.path.join(work, 'site'),
                   'PAGES_PORT': str(port), 'CALLED': os.path.join(work, 'called'),
                   'GWT_GATE_START': '0.05', 'GWT_GATE_FLOOR': '0.05'}


def refused(project, environment):
    """Let the README's loop meet each refusal and return what went wrong."""
    faults = []
    for record, (_, _, _, expected, line) in REFUSALS.items():
        with open(os.path.join(project, 'ids.txt'), 'w', encoding='utf-8') as file:
            file.write(record + '\n')
        code = subprocess.run(['sh', 'fetch.sh'], cwd=project, env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS).returncode
        directory = os.path.join(environment['HOME'], '.cache', 'gwt-gate', 'www.example.org')
        with open(os.path.join(directory, 'calls.log'), encoding='utf-8') as file:
            if code != expected or line not in file.read():
                faults.append('%s: exit %d, and %d was due, with "%s" in the log' % (record, code, expected, line))
        subprocess.run(['gwt-gate', '--dir', directory, 'clear', 'next'], env=environment, check=True)
    return faults


def main():
    with open(os.path.join(ROOT, 'README.md'), encoding='utf-8') as file:
        readme = file.read()
    blocks = [match for match in BLOCK.finditer(readme) if match.group(2) not in SHOWN]
    if readme.count('\n```') != 2 * len(list(BLOCK.finditer(readme))) or not blocks:
        sys.exit('README.md: a block that is not closed, or none at all')
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    faults = 0
    with tempfile.TemporaryDirectory(prefix='gwt-gate-readme-') as work:
        stubs, environment = prepare(work, server.server_port)
        for match in blocks:
            expected, language, text = int(match.group(1) or 0), match.group(2), match.group(3)
            if 'unittest test_gwt_gate' in text:
                continue  # .ci/run has run this very line, on each Python
            command = {'sh': ['sh', '-eu', '-c', text], 'python': ['python3', '-c', text]}[language]
            done = subprocess.run(command, cwd=os.path.join(work, 'project'), env=environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  timeout=SECONDS)
            right = done.returncode == expected and b'Traceback' not in done.stdout
            faults += not right
            line = readme.count('\n', 0, match.start(3))
            print('README.md:%d: exit %d%s' % (line, done.returncode, '' if right else ', but %d was due' % expected))
            if not right:
                print(done.stdout.decode('utf-8', 'replace'))
        with open(environment['CALLED'], encoding='utf-8') as file:
            uncalled = set(stubs) - set(file.read().split())
        log = os.path.join(environment['HOME'], '.cache', 'gwt-gate', 'notices', 'calls.log')
        with open(log, encoding='utf-8') as file:
            failed = [entry for entry in file if ' NOTIFY ' in entry and not entry.endswith('exit=0\n')]
        failed += refused(os.path.join(work, 'project'), environment)
    server.shutdown()
    server.server_close()
    if uncalled or failed:
        sys.exit('not called: %s; what failed: %s' % (sorted(uncalled), failed))
    print('%d blocks, %d wrong' % (len(blocks), faults))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
