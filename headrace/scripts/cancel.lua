-- Cancel jobs, whatever their state, and say truly what that did. KEYS: none. ARGV: 1 queue prefix, 2 for how many
-- seconds to remember ids that have no record (0: not at all), so that a message of theirs is not run; then ids, each
-- with a blank and an API key behind it where the job is unknown unless it is that key's (-: nobody's).
-- Returns per id: unknown, removed (it will not run), asked (a worker holds it, and is told), or ended.
-- What was cancelled is cleared out of a list when there is so much of it, and more than of what waits.
local COMPACT_MIN = 10000
local REMEMBERED_MAX = 50000
local touched, told, unknown = {}, {}, {}

-- Clears the message of a waiting job where its ticket says that it is, and gives it; false where another stands there,
-- as after neighbours were put back or cleared out.
local function cleared(list, step, id, ticket, out)
  local at = tonumber(ticket or '0') - (tonumber(out or '0') or 0)
  local raw = at > 0 and redis.call('LINDEX', list, -at)
  local ours = raw and string.find(raw, '"id":"' .. id .. '"', 1, true)
  if not ours and not (raw and string.find(raw, '"id": "' .. id .. '"', 1, true)) then return false end
  redis.call('LSET', list, -at, GONE)
  return raw
end

local function waits(state) return state == 'q' or state == 'd' end

local function cancel(id, key)
  local state, model, step, ttl, waiter, ticket, owner, token, telling, of =
    unpack(read(id, 's', 'm', 'p', 'l', 'w', 'n', 'o', 't', 'fw', 'ky'))
  if key and key ~= (of or '-') then return 'unknown' end
  if not state then
    unknown[#unknown + 1] = id
    return 'unknown'
  end
  -- What follows it is being told of its end.
  if state == 'r' and telling and telling == token then return 'ended' end
  if state == 'r' then
    redis.call('HDEL', JOB .. id, 'cr')
    redis.call('HSET', JOB .. id, 'cr', '1')
    if model and owner and token then
      local t = told[owner] or {}
      told[owner] = t
      t[#t + 1], t[#t + 2], t[#t + 3] = model, id, token
    end
    return 'asked'
  end
  if not waits(state) then return 'ended' end
  local queue = ARGV[1] .. model
  redis.call('ZREM', 'hr:delayed:' .. queue, id)
  local raw = redis.call('HGET', 'hr:parked:' .. queue, id)
  redis.call('HDEL', 'hr:parked:' .. queue, id)
  if state == 'q' then
    local list = list_of(queue, STEP_INDEX[step] or 1)
    local out = redis.call('HGET', 'hr:count:' .. queue, 'out' .. step)
    raw = cleared(list, step, id, ticket, out)
    if not raw then
      -- The message stays listed; its tombstone outlives the record, so that a claim drops it however late.
      redis.call('HSET', 'hr:tomb:' .. queue, id, step)
    end
    redis.call('HINCRBY', 'hr:count:' .. queue, 'tomb' .. step, 1)
    touched[list] = {queue, step}
  end
  finish_cancelled(id, ttl, waiter, queue, raw)
  return 'removed'
end

redis.call('ZCARD', REVOKED_IDS)
local asked = {}
for i = 3, #ARGV do
  local id, key = string.match(ARGV[i], '^(%S+) (%S+)$')
  asked[i - 2] = {id or ARGV[i], key}
  local state, model = unpack(read(asked[i - 2][1], 's', 'm'))
  if waits(state) then
    local queue = ARGV[1] .. model
    redis.call('ZCARD', 'hr:delayed:' .. queue); redis.call('HLEN', 'hr:parked:' .. queue)
    redis.call('HLEN', 'hr:count:' .. queue); redis.call('HLEN', 'hr:tomb:' .. queue)
    for s = 1, 4 do redis.call('LLEN', list_of(queue, s)) end
  end
end
local answer = {}
for n, a in ipairs(asked) do answer[n] = cancel(a[1], a[2]) end
for owner, jobs in pairs(told) do redis.call('PUBLISH', CANCELLED .. owner, cmsgpack.pack(jobs)) end
if ARGV[2] ~= '0' and #unknown > 0 then
  pass_at_maxmemory(REVOKED_IDS)
  for _, id in ipairs(unknown) do redis.call('ZADD', REVOKED_IDS, whole(NOW_US + tonumber(ARGV[2]) * 1e6), id) end
  redis.call('EXPIRE', REVOKED_IDS, ARGV[2])
  redis.call('ZREMRANGEBYSCORE', REVOKED_IDS, '-inf', NOW)
  redis.call('ZREMRANGEBYRANK', REVOKED_IDS, 0, -(REMEMBERED_MAX + 1))
end
for list, t in pairs(touched) do
  local tombs = tonumber(redis.call('HGET', 'hr:count:' .. t[1], 'tomb' .. t[2]))
  if tombs >= COMPACT_MIN and tombs > redis.call('LLEN', list) / 2 then
    redis.call('HINCRBY', 'hr:count:' .. t[1], 'tomb' .. t[2], -redis.call('LREM', list, 0, GONE))
  end
end
return answer
