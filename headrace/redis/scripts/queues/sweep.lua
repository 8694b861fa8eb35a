-- @include finish
-- What stands behind the wake-up: delayed jobs that are due join their lists, and leases that ran out are reaped.
-- KEYS: the queue's. ARGV: 1 queue, 2 until when (in us) to reap: what arrives later was said before an outage, and reaps
--       nothing; 3 losses as in give_back, 4 limit, 5 how many ends of jobs, of which nobody has told what follows them, are
--       handed out.
-- Returns {promoted, reaped, us until the next delayed job or -1, then jobs in the list of each step (the first is -1 where the
-- queue is paused), now, then per such end: its name, and the Celery result's length, ':', the Celery result and the message}.
check_types(true)
local limit = tonumber(ARGV[4])
local paused = redis.call('SISMEMBER', 'hr:paused', ARGV[1]) == 1
local promoted, reaped = 0, 0

-- A due message whose job ended meanwhile is dropped. One whose record was deleted is as a stock client's.
local function promote(id)
  local raw = redis.call('HGET', KEYS[9], id)
  local state, step = unpack(read(id, 's', 'p'))
  redis.call('ZREM', KEYS[8], id)
  redis.call('HDEL', KEYS[9], id)
  if not raw or (state and state ~= 'd') then return end
  local s = STEP_INDEX[step or '0'] or 1
  local out = redis.call('HGET', KEYS[7], 'out' .. STEPS[s])
  local ticket = redis.call('LPUSH', KEYS[s], raw) + (tonumber(out or '0') or 0)
  if state then redis.call('HSET', JOB .. id, 's', 'q', 'n', ticket, 'j', NOW) end
  promoted = promoted + 1
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', NOW, 'LIMIT', 0, limit)) do promote(id) end
if NOW_US <= tonumber(ARGV[2]) then
  local expired = {}
  for i, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', NOW, 'LIMIT', 0, limit)) do
    expired[i] = {id = id, token = tonumber(read(id, 't')[1] or '0') or 0}
  end
  for _, c in ipairs(latest_first(expired)) do give_back(c.id, 'crash', ARGV[3], ARGV[1]) end
  reaped = #expired
  if reaped > 0 then tally(ARGV[1], 'leases_lost', reaped) end
end

-- Tombstones of messages that somebody else removed (celery purge, DEL) would make a queue look shorter for ever.
local left, total, entombed = {}, 0, redis.call('HLEN', KEYS[11]) > 0
local tombs = redis.call('HMGET', KEYS[7], 'tomb0', 'tomb3', 'tomb6', 'tomb9')
for s = 1, 4 do
  local length = redis.call('LLEN', KEYS[s])
  left[s], total = length, total + length
  if length == 0 and tombs[s] and tombs[s] ~= '0' then redis.call('HDEL', KEYS[7], 'tomb' .. STEPS[s]) end
end
if entombed and total == 0 then redis.call('UNLINK', KEYS[11]) end
if paused then left[1] = -1 end
local due = redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')
local answer = {promoted, reaped, due[2] and math.max(0, tonumber(due[2]) - NOW_US) or -1,
  left[1], left[2], left[3], left[4], NOW}

-- Ends that scripts left (see leave_untold in lib/finish.lua). Whoever has told one removes it; else it comes up again.
local UNTOLD_MAX_BYTES, TELLING_US = 1048576, 60000000
local function hand_out(most)
  local untold, ends, bytes = 'hr:untold:' .. ARGV[1], 'hr:ends:' .. ARGV[1], 0
  local names = most > 0 and redis.pcall('ZRANGEBYSCORE', untold, '-inf', NOW, 'LIMIT', 0, most) or {}
  if names.err or #names == 0 then return end
  pass_at_maxmemory(untold)
  for _, name in ipairs(names) do
    if bytes >= UNTOLD_MAX_BYTES then return end
    local told = redis.pcall('HGET', ends, name)
    if type(told) == 'string' then
      redis.call('ZADD', untold, whole(NOW_US + TELLING_US), name)
      answer[#answer + 1] = name
      answer[#answer + 1] = told
      bytes = bytes + #told
    else
      redis.call('ZREM', untold, name)
    end
  end
end
hand_out(tonumber(ARGV[5] or '0'))
return answer
