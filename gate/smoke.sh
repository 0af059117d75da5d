#!/bin/sh
# smoke.sh: three lanes of a fake reader walk into a captcha and out again.
#
# Real processes, no network but loopback, a few seconds. PYTHON picks the interpreter (python3). The last line says
# what was counted; anything else than expected ends it with a line on stderr and exit 1.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
for name in $(env | sed -n 's/^\(GWT_GATE_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done

server='' waiting=''
tmp=$(mktemp -d)
# the lanes end by themselves once the page server is gone
trap 'kill $server $waiting 2>/dev/null || :; wait; rm -rf "$tmp"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

export GWT_GATE_DIR="$tmp/site.example" GWT_GATE_START=0.3 GWT_GATE_MAX_WAIT=30

fail() {
    echo "smoke: $*" >&2
    exit 1
}

gate() {
    "$python" "$here/gwt-gate" "$@"
}

# within SECONDS WHAT COMMAND...: try a command until it succeeds
within() {
    tries=$(($1 * 10)) what=$2
    shift 2
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "it never came about that $what"
        sleep 0.1
    done
}

# lines FILE [PATTERN]: how many lines a file has that match
lines() {
    if [ -e "$1" ]; then grep -c "${2:-}" "$1" || :; else echo 0; fi
}

probed_twice_or_ended() {
    [ "$(lines "$tmp/requests" '^/probe$')" -ge 2 ] || ! kill -0 "$waiting" 2> /dev/null
}

# milliseconds that have passed, for telling intervals
now() {
    "$python" -c 'import time; print(int(time.monotonic() * 1000))'
}

page() {
    printf '<!DOCTYPE html><html><head><title>%s</title></head><body>%s</body></html>\n' "$1" "$2" > "$tmp/page.new"
    mv "$tmp/page.new" "$tmp/page"
}

# --- the site: one page, always with status 200 -------------------------------------------------------------------

cat > "$tmp/server.py" << 'END'
import http.server
import os
import sys

os.chdir(sys.argv[1])


class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open('page', 'rb') as file:
            body = file.read()
        self.send_response(200)
        self.send_header('Content-Type', 'text/html; charset=utf-8')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        with open('requests', 'a') as file:
            file.write(self.path + '\n')

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(('127.0.0.1', 0), Site)
with open('port.new', 'w') as file:
    file.write('%d\n' % server.server_port)
os.rename('port.new', 'port')
server.serve_forever()
END

# fetch.py PORT PATH [TEXT]: print the answer with its headers; with TEXT exit 1 unless it is in it
cat > "$tmp/fetch.py" << 'END'
import socket
import sys

with socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=20) as connection:
    connection.sendall(b'GET %s HTTP/1.0\r\n\r\n' % sys.argv[2].encode())
    with connection.makefile('rb') as file:
        answer = file.read().decode('utf-8')
sys.stdout.write(answer)
sys.exit(0 if all(text in answer for text in sys.argv[3:]) else 1)
END

cat > "$tmp/notice.sh" << 'END'
#!/bin/sh
printf '%s|%s|%s\n' "$2" "$3" "$4" >> "$1"
END
chmod +x "$tmp/notice.sh"

record='Anna Kowalska, born 1843'
page 'Register' "<p>$record</p>"
"$python" "$tmp/server.py" "$tmp" &
server=$!
within 30 'the page server runs' test -e "$tmp/port"
port=$(cat "$tmp/port")

# --- the reader ---------------------------------------------------------------------------------------------------

# read_one LANE: one request with the gate's leave; a wall is reported, a record is kept; exit 3 is passed on
read_one() {
    gate wait "$1" 2> "$tmp/$1.said" || return $?
    "$python" "$tmp/fetch.py" "$port" /record > "$tmp/$1.html" 2> "$tmp/$1.said" || return 1
    if wall=$(gate challenge "$tmp/$1.html"); then
        echo "$wall" >> "$tmp/walls"
        gate human "$1" "$wall on /record" --url "http://127.0.0.1:$port/record" \
            --notify "'$tmp/notice.sh' '$tmp/notices' {site} {url} {what}" 2> "$tmp/$1.said" || return 1
    elif grep -q "$record" "$tmp/$1.html"; then
        echo "$1" >> "$tmp/records"
    else
        return 1
    fi
}

# lane NAME: read until the gate or the site says no, and leave the exit code behind
lane() {
    while code=0 && { read_one "$1" || code=$?; } && [ "$code" = 0 ]; do :; done
    echo "$code" > "$tmp/$1.exit"
}

# --- into the captcha ---------------------------------------------------------------------------------------------

lane anna & lane bert & lane cleo &
within 30 'a lane reads a record' test -e "$tmp/records"
page 'Just a moment' '<form><div class="h-captcha" data-sitekey="x"></div></form>
<script src="https://js.hcaptcha.com/1/api.js" async defer></script>'
for name in anna bert cleo; do
    within 60 "lane $name leaves" test -s "$tmp/$name.exit"
    [ "$(cat "$tmp/$name.exit")" = 3 ] || fail "lane $name left with exit $(cat "$tmp/$name.exit"), not 3: $(cat "$tmp/$name.said")"
    grep -q 'hcaptcha on /record' "$tmp/$name.said" || fail "lane $name was told: $(cat "$tmp/$name.said")"
done
left=$(cat "$tmp"/*.exit | grep -c '^3$')
before=$(lines "$tmp/records")
walls=$(lines "$tmp/walls" '^hcaptcha$')
reports=$(lines "$GWT_GATE_DIR/calls.log" ' HUMAN ')
[ "$walls" -ge 1 ] && [ "$walls" = "$(lines "$tmp/walls")" ] || fail "the wall was named: $(cat "$tmp/walls")"
[ "$reports" = "$walls" ] || fail "$walls lanes met the wall, and the log has $reports reports"
notices=$(lines "$tmp/notices")
[ "$notices" = 1 ] || fail "the notice ran $notices times, not once"
[ "$(cat "$tmp/notices")" = "site.example|http://127.0.0.1:$port/record|hcaptcha on /record" ] ||
    fail "the notice was given: $(cat "$tmp/notices")"
[ "$(lines "$GWT_GATE_DIR/calls.log" ' NOTIFY .* exit=0$')" = 1 ] || fail 'the log has not one notice'
gate status > "$tmp/status"
grep -q '"paused_for_s": null' "$tmp/status" || fail "not parked: $(head -n 1 "$tmp/status")"

# --- and out of it ------------------------------------------------------------------------------------------------

"$python" "$here/gwt-gate" wait-clear --every 0.5 --timeout 60 \
    --probe "'$python' '$tmp/fetch.py' $port /probe '$record'" 2> "$tmp/waiting.said" &
waiting=$!
within 30 'wait-clear probes twice' probed_twice_or_ended
kill -0 "$waiting" 2> /dev/null || fail "wait-clear took a captcha page with status 200 for the record: $(cat "$tmp/waiting.said")"
code=0
gate wait anna 2> /dev/null || code=$?
[ "$code" = 3 ] || fail "a lane that asks while parked got exit $code, not 3"

page 'Register' "<p>$record</p>"
code=0
wait "$waiting" || code=$?
waiting=''
[ "$code" = 0 ] || fail "wait-clear ended with exit $code: $(cat "$tmp/waiting.said")"
probes=$(lines "$tmp/requests" '^/probe$')
[ "$(lines "$GWT_GATE_DIR/calls.log" ' CLEAR probe passed ')" = 1 ] || fail 'the log does not say that the probe passed'

begin=$(now)
for name in anna bert cleo; do
    (code=0; read_one "$name" || code=$?; echo "$code" > "$tmp/$name.exit.new"; mv "$tmp/$name.exit.new" "$tmp/$name.again") &
done
for name in anna bert cleo; do
    within 60 "lane $name goes on" test -e "$tmp/$name.again"
    [ "$(cat "$tmp/$name.again")" = 0 ] || fail "lane $name could not go on: exit $(cat "$tmp/$name.again") $(cat "$tmp/$name.said")"
done
took=$(($(now) + 1 - begin))
after=$(($(lines "$tmp/records") - before))
[ "$after" = 3 ] || fail "$after records were read afterwards, not 3"
gap=$(sed -n 's/.* CALL .* gap=//p' "$GWT_GATE_DIR/calls.log" | tail -n 1)
first_gap=$(sed -n 's/.* CALL .* gap=//p' "$GWT_GATE_DIR/calls.log" | head -n 1)
[ "$first_gap $gap" = '0.300 0.900' ] || fail "the gap went from $first_gap to $gap s, not from 0.300 to 0.900"
[ "$took" -ge 1800 ] || fail "three slots within $took ms, where two gaps of 0.9 s lie between them"

echo "smoke: records read: $before; lanes that met $(sort -u "$tmp/walls"): $reports; notices: $notices; lanes that left with" \
    "exit 3: $left; probes until one passed: $probes; records read then: $after in $took ms; gap: $first_gap s, then $gap s"
