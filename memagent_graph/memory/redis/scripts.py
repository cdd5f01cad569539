"""Lua scripts that change an item and its index atomically.

An item is a string: `<created> <updated> <ttl> <kind>`, a newline, and the value. Times are in
microseconds since 1970 by the server's clock; the ttl is in milliseconds, 0 for none. All keys that
a script touches are passed to it, as clusters require.
"""

from __future__ import annotations

RECEIPT_MILLISECONDS = 60_000  # longer than any client repeats a command
SWEPT_BY_WRITES = 10
SWEPT_BY_READS = 1_000

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
local index, expiry = KEYS[1], KEYS[2]
local function write(item, member, ttl, body)
  if body == '' then
    redis.call('DEL', item)
    redis.call('ZREM', index, member)
    redis.call('ZREM', expiry, member)
    return
  end
  local old = redis.pcall('GETRANGE', item, 0, 31)
  local created = type(old) == 'string' and string.match(old, '^(%d+) ') or now
  if #created > 17 then created = now end
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
local function write_all(key, argument)
  while ARGV[argument] do
    write(KEYS[key], ARGV[argument], ARGV[argument + 1], ARGV[argument + 2])
    key, argument = key + 1, argument + 3
  end
end
"""
)

_TOUCH = (
    _CLOCK
    + """
local function touch(item, member, head)
  local ttl = string.match(head, '^%d+ %d+ (%d+) ')
  if ttl and ttl ~= '0' then
    local deadline = in_milliseconds(ttl)
    redis.call('PEXPIREAT', item, deadline)
    redis.call('ZADD', KEYS[1], deadline, member)
  end
end
"""
)

# KEYS index expiry, then items; ARGV member ttl body of each: sets, or deletes if there is no body.
# Items to set come first: a server without memory refuses only the first write of a script.
PUT = _WRITE + "write_all(3, 1)"

ABSENT = b"-"
PRESENT = b"*"
# As PUT, if the checked items are as expected. KEYS index expiry receipt, then checked items, then
# items; ARGV number of checked items, for each its body, ABSENT or PRESENT, then as PUT. Returns 1
# if done, 0 if not done, or place and content of the checked items that have other bytes. A key of
# another type is not an item.
COMMIT = (
    _WRITE
    + f"""
local checked = tonumber(ARGV[1])
if redis.call('EXISTS', KEYS[3]) == 1 then return 1 end
local others = {{}}
for place = 1, checked do
  local found, expected = redis.pcall('GET', KEYS[3 + place]), ARGV[1 + place]
  local there = type(found) == 'string'
  if there == (expected == '{ABSENT.decode()}') then return 0 end
  if there and expected ~= '{PRESENT.decode()}'
      and string.match(found, '^%d+ %d+ %d+ (.*)$') ~= expected then
    table.insert(others, {{place - 1, found}})
  end
end
if #others > 0 then return others end
write_all(4 + checked, 2 + checked)
redis.call('SET', KEYS[3], '', 'PX', {RECEIPT_MILLISECONDS})
return 1
"""
)

# KEYS expiry, then items; ARGV member of each, or nothing: reads items, and restarts the times to
# live of those with a member. Returns the items; an error for a key of another type.
FETCH = (
    _TOUCH
    + """
local found = {}
for place, member in ipairs(ARGV) do
  local item = KEYS[place + 1]
  local value = redis.pcall('GET', item)
  if type(value) ~= 'string' then
    if value and not string.find(value.err, 'WRONGTYPE') then return value end
  elseif member ~= '' then
    touch(item, member, value)
  end
  found[place] = value
end
return found
"""
)

# KEYS expiry item, ARGV member: restarts its time to live.
TOUCH = _TOUCH + "touch(KEYS[2], ARGV[1], redis.call('GETRANGE', KEYS[2], 0, 63))"

# KEYS index expiry: removes expired entries, and returns their number.
SWEEP = _CLOCK + _SWEEP + f"return sweep(KEYS[1], KEYS[2], {SWEPT_BY_READS})"

# KEYS item index, ARGV member: removes the entry of an item that the server evicted.
FORGET = "if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end"

# KEYS index, ARGV low high limit: jumps from namespace to namespace. Returns the start of each,
# to the end of its `//`.
NAMESPACES = r"""
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
