-- Submit M jobs, of any queues, in one call: idempotency, admission, record, push. Answers per job.
-- KEYS: none beyond what ARGV names (Redis Cluster is refused at start).
-- ARGV: 1 how many of a model's newest jobs are indexed (0: none), then per job 8: id, queue, step, max depth,
--       delay in us (0 = now), request hash or '', raw message, count n, then n record fields and values.
-- Returns per job: {code, created, ticket or depth}; code 1 queued, 2 known already, 0 queue full, 3 the id is
-- another request's, 4 a key of the queue is not of its type. A job that cannot be taken does not hinder its
-- neighbours.
local HEAD = 8
local answers, queues = {}, {}
local index_most = tonumber(ARGV[1])

-- Lengths and counters of a queue, kept up to date by this call; false where a key of it cannot be used.
local function look(queue)
  local counts = redis.pcall('HMGET', 'hr:count:' .. queue,
    'out0', 'out3', 'out6', 'out9', 'tomb0', 'tomb3', 'tomb6', 'tomb9')
  local entombed = redis.pcall('HLEN', 'hr:tomb:' .. queue)
  local delayed = redis.pcall('ZCARD', 'hr:delayed:' .. queue)
  local parked = redis.pcall('HLEN', 'hr:parked:' .. queue)
  local unusable = counts.err or type(entombed) == 'table' or type(delayed) == 'table' or type(parked) == 'table'
  if unusable then return false end
  local q = {fresh = {}, depth = delayed, entombed = entombed > 0, lists = {}, tickets = {}}
  for s = 1, 4 do
    local list = list_of(queue, s)
    local length = redis.pcall('LLEN', list)
    if type(length) == 'table' then return false end
    q.lists[STEPS[s]] = list
    q.tickets[STEPS[s]] = length + (tonumber(counts[s] or '0') or 0)
    q.depth = q.depth + length - (tonumber(counts[4 + s] or '0') or 0)
  end
  return q
end

local i, n = 2, 0
while i <= #ARGV do
  local name = ARGV[i + 1]
  if queues[name] == nil then queues[name] = look(name) end
  i = i + HEAD + tonumber(ARGV[i + 7])
end

local function submit(i, last)
  local id, name, step, max_depth, delay, hash, raw = unpack(ARGV, i, i + 6)
  delay = tonumber(delay)
  local job, q = JOB .. id, queues[name]
  local known = redis.pcall('HMGET', job, 'c', 'h')
  if known.err then return {3, NOW, 0} end
  if known[1] then return {(known[2] or '') == hash and 2 or 3, known[1], 0} end
  if not q then return {4, NOW, 0} end
  -- A cancelled job whose record is gone but whose message is still listed: its tombstone would drop this one.
  if q.entombed and redis.call('HEXISTS', 'hr:tomb:' .. name, id) == 1 then return {3, NOW, 0} end
  if q.depth >= tonumber(max_depth) then return {0, NOW, q.depth} end
  local ticket = q.tickets[step] + 1
  local written
  if delay > 0 then
    written = redis.pcall('HSET', job, 's', 'd', 'c', NOW, 'p', step, unpack(ARGV, i + HEAD, last))
  else
    written = redis.pcall('HSET', job, 's', 'q', 'c', NOW, 'p', step, 'n', ticket, unpack(ARGV, i + HEAD, last))
  end
  if type(written) == 'table' then return nil, written.err end
  q.depth = q.depth + 1
  if hash ~= '' then redis.call('HSET', job, 'h', hash) end
  if index_most > 0 then
    local k = #q.fresh
    q.fresh[k + 1], q.fresh[k + 2] = NOW, id
  end
  if delay > 0 then
    redis.call('HSET', 'hr:parked:' .. name, id, raw)
    redis.call('ZADD', 'hr:delayed:' .. name, whole(NOW_US + delay), id)
    return {1, NOW, 0}
  end
  redis.call('LPUSH', q.lists[step], raw)
  q.tickets[step] = ticket
  return {1, NOW, ticket}
end

i = 2
while i <= #ARGV do
  local last = i + HEAD - 1 + tonumber(ARGV[i + 7])
  n = n + 1
  local answer, err = submit(i, last)
  if err then
    -- Refused before anything was written: Redis looks at its memory at a script's first write only. Redis 6.2 hides
    -- the reason behind the line of the script; clients know it by how it begins.
    if string.find(err, 'OOM', 1, true) then err = "OOM command not allowed when used memory > 'maxmemory'." end
    return redis.error_reply(err)
  end
  answers[n] = answer
  i = last + 1
end
for name, q in pairs(queues) do
  if q then index_jobs(string.sub(name, #'headrace.' + 1), q.fresh, index_most) end
end
return answers
