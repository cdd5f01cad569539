"""The Lua that makes a change to an item and to its index one step.

An item is a string: `<created> <updated> <ttl> <kind>`, a newline, and the value. Times are
microseconds since 1970 by the server's clock; the ttl is milliseconds, 0 for none. Every key that
a script touches is passed to it, as clusters ask for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha1

RECEIPT_MILLISECONDS = 60_000  # longer than any client repeats a command
STREAM_ENTRIES = 1_000
STREAM_SECONDS = 7 * 86_400
SWEPT_BY_WRITES = 10
SWEPT_BY_READS = 1_000


@dataclass(frozen=True)
class Script:
    """A Lua program, and the name under which a server remembers it."""

    text: str

    @cached_property
    def sha(self) -> str:
        """SHA-1 in hex: Redis' own name for it."""
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()


_CLOCK = """
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
local function in_milliseconds(ttl)
  return string.format('%.0f', math.floor(tonumber(now) / 1000) + tonumber(ttl))
end
"""

_SWEEP = """
local function sweep(index, expiry, limit)
  local until_now = in_milliseconds(0)
  local gone = redis.call('ZRANGEBYSCORE', expiry, '-inf', until_now, 'LIMIT', 0, limit)
  if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
    redis.call('ZREM', expiry, unpack(gone))
  end
  return #gone
end
"""

_WRITE = (
    _CLOCK
    + _SWEEP
    + f"""
local item, index, expiry = KEYS[1], KEYS[2], KEYS[3]
local member, ttl, body = ARGV[1], ARGV[2], ARGV[3]
local function write()
  if body == '' then
    redis.call('DEL', item)
    redis.call('ZREM', index, member)
    redis.call('ZREM', expiry, member)
    return
  end
  local created = string.match(redis.call('GETRANGE', item, 0, 31), '^%d+') or now
  local head = created .. ' ' .. now .. ' ' .. ttl .. ' '
  redis.call('SET', item, head .. body)
  redis.call('ZADD', index, 0, member)
  if ttl == '0' then
    redis.call('ZREM', expiry, member)
  else
    local deadline = in_milliseconds(ttl)
    redis.call('PEXPIREAT', item, deadline)
    redis.call('ZADD', expiry, deadline, member)
    sweep(index, expiry, {SWEPT_BY_WRITES})
  end
end
"""
)

_TOUCH = (
    _CLOCK
    + """
local item, expiry, member = KEYS[1], KEYS[2], ARGV[1]
local ttl = string.match(redis.call('GETRANGE', item, 0, 63), '^%d+ %d+ (%d+) ')
if ttl and ttl ~= '0' then
  local deadline = in_milliseconds(ttl)
  redis.call('PEXPIREAT', item, deadline)
  redis.call('ZADD', expiry, deadline, member)
end
"""
)

# KEYS item index expiry, ARGV member ttl body: sets, or deletes when the body is empty.
PUT = Script(_WRITE + "write()")

# As PUT unless the item is there, which is returned then; KEYS may end with a stream to announce
# the item on.
CLAIM = Script(
    _WRITE
    + f"""
local found = redis.call('GET', item)
if found then return found end
write()
if KEYS[4] then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', {STREAM_ENTRIES}, '*', 'member', member)
  redis.call('EXPIRE', KEYS[4], {STREAM_SECONDS})
end
return false
"""
)

# As PUT, with a receipt at the end of KEYS and, at the end of ARGV, the body that must be there,
# empty for none. Returns 1 if it was, else what is there now.
SWAP = Script(
    _WRITE
    + f"""
local receipt, expected = KEYS[4], ARGV[4]
if redis.call('EXISTS', receipt) == 1 then return 1 end
local found = redis.call('GET', item)
local current = found and string.match(found, '^%d+ %d+ %d+ (.*)$') or ''
if current ~= expected then return found end
write()
redis.call('SET', receipt, '', 'PX', {RECEIPT_MILLISECONDS})
return 1
"""
)

# KEYS item expiry, ARGV member: reads an item and lets its time to live begin again.
FETCH = Script(_TOUCH + "return redis.call('GET', item)")

# As FETCH, without the value.
TOUCH = Script(_TOUCH)

# KEYS index expiry: forgets what has expired. Returns how many entries that were.
SWEEP = Script(_CLOCK + _SWEEP + f"return sweep(KEYS[1], KEYS[2], {SWEPT_BY_READS})")

# KEYS item index, ARGV member: forgets an item that the server evicted.
FORGET = Script(
    "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end"
)

# KEYS index, ARGV low high limit: jumps from namespace to namespace. Returns the start of each,
# to the end of its `//`.
NAMESPACES = Script(
    r"""
local low, found = ARGV[1], {}
while #found < tonumber(ARGV[3]) do
  local member = redis.call('ZRANGEBYLEX', KEYS[1], low, ARGV[2], 'LIMIT', 0, 1)[1]
  if not member then break end
  local _, stop = string.find(member, '//', 1, true)
  local namespace = string.sub(member, 1, stop)
  table.insert(found, namespace)
  low = '(' .. namespace .. '\255'
end
return found
"""
)
