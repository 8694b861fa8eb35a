-- @include order
-- Submit M jobs, of any queues, in one call: idempotency, admission, record, push.
-- KEYS: none beyond those that ARGV names (Redis Cluster is refused at start).
-- ARGV: 1 how many of a model's newest jobs are indexed (0: none), then runs of neighbours that share everything except ids,
--       messages and request hashes. A run is: queue, step, max depth, delay in us (0: none), in how many us they must have
--       started (0: no limit), whether they are listed (1 or 0), API key ('': none; else its id, how many jobs it may have
--       in flight, 0 for any number, 1 if it sees the jobs of others, and tokens a minute or 0), values of a job w (2, 3 with request hashes, or 4
--       with hashes and tokens), how many tokens the jobs may have that have not ended (0: any number), count n, then n record
--       fields and values, count of jobs, then per job w: id, raw message, request hash or '', tokens as in lib/order.lua.
-- Returns {now, then 4 for each job that was not queued: its place from 1, code, created, depth}. Codes: 2 known already,
-- 0 queue full, 3 the id was used for another request, 4 a key of the queue has a wrong type, 5 the id belongs to another
-- API key, 6 the API key has as many jobs in flight as it may (the depth), 7 the queue has as many tokens as it may (the
-- depth; in place of created: in how many us it has room at its present pace, 0 if that is unknown), 8 the API key has used
-- its tokens of this minute (the depth: how many are left; in place of created: in how many us there are enough). A refused
-- job does not stop its neighbours.
local HEAD = 10
local index_most = tonumber(ARGV[1])
local answer, queues, records, owners, expiring = {NOW}, {}, {}, {}, {}

-- Whether a queue has none of the keys that most queues do not have: one command in place of six.
local function plain(queue)
  return call('EXISTS', keys.delayed .. queue, keys.parked .. queue, keys.tomb .. queue,
    list_of(queue, 2), list_of(queue, 3), list_of(queue, 4)) == 0
end

-- Lengths and counters of a queue, kept up to date by this call, and what is gathered to be written together. False if
-- a key of it has a wrong type.
local function look(queue)
  local counts = try('HMGET', keys.count .. queue,
    'out0', 'out3', 'out6', 'out9', 'tomb0', 'tomb3', 'tomb6', 'tomb9', 'tokens', 'pace')
  local entombed, delayed, parked, lists = 0, 0, 0, 1
  if not plain(queue) then
    entombed = try('HLEN', keys.tomb .. queue)
    delayed = try('ZCARD', keys.delayed .. queue)
    parked = try('HLEN', keys.parked .. queue)
    lists = 4
  end
  local unusable = counts.err or type(entombed) == 'table' or type(delayed) == 'table' or type(parked) == 'table'
  if unusable then return false end
  local tickets, depth = {}, delayed
  for s = 1, 4 do
    local length = s <= lists and try('LLEN', list_of(queue, s)) or 0
    if type(length) == 'table' then return false end
    tickets[s] = length + (tonumber(counts[s] or '0') or 0)
    depth = depth + length - (tonumber(counts[4 + s] or '0') or 0)
  end
  return {depth = depth, entombed = entombed > 0, tickets = tickets, fresh = {}, pushed = {}, parked = false, due = false,
    tokens = tonumber(counts[9] or '0') or 0, pace = counts[10], more_tokens = 0, ordered = {}}
end

-- An API key and how many jobs it has in flight, kept up to date by this call.
local function look_at_owner(text)
  local id, most, all, minute = string.match(text, '^(%x+) (%d+) (%d) (%d+)$')
  local count = try('HGET', keys.IN_FLIGHT, id)
  minute = tonumber(minute)
  return {id = id, most = tonumber(most), all = all == '1', fresh = 0, count = type(count) == 'string' and tonumber(count) or 0,
    minute = minute, spent = 0, left = minute > 0 and level_of(keys.token_rate .. id, minute / 60, minute, minute)}
end

local i, n = 2, 0
while i <= #ARGV do
  local name, owner, width = ARGV[i], ARGV[i + 6], tonumber(ARGV[i + 7])
  if queues[name] == nil then queues[name] = look(name) end
  if owner ~= '' and not owners[owner] then owners[owner] = look_at_owner(owner) end
  local first = i + HEAD + tonumber(ARGV[i + HEAD - 1]) + 1
  i = first + width * tonumber(ARGV[first - 1])
  for at = first, i - 1, width do
    n = n + 1
    records[n] = keys.job .. ARGV[at]
  end
end

-- One command for all: if no id is known, no record is read alone, except those that this call has written.
local known_count, written = 0, {}
for at = 1, n, CHUNK do
  known_count = known_count + call('EXISTS', unpack(records, at, math.min(at + CHUNK - 1, n)))
end

-- Why a job is refused, as code, created and depth; nothing if it is not.
local function refusal(name, max_depth, id, record, hash, owner, tokens, max_tokens)
  if known_count > 0 or written[record] then
    local known = try('HMGET', record, 'c', 'h', 'ky')
    if known.err then return 3, NOW, 0 end
    if known[1] and owner and not owner.all and known[3] ~= owner.id then return 5, NOW, 0 end
    if known[1] then return (known[2] or '') == hash and 2 or 3, known[1], 0 end
  end
  local q = queues[name]
  if not q then return 4, NOW, 0 end
  -- A cancelled job whose record is gone, but whose message is still in a list: its tomb entry would drop this one.
  if q.entombed and call('HEXISTS', keys.tomb .. name, id) == 1 then return 3, NOW, 0 end
  if q.depth >= max_depth then return 0, NOW, q.depth end
  if owner and owner.most > 0 and owner.count >= owner.most then return 6, NOW, owner.count end
  -- A job that has more than all may have is taken alone.
  if max_tokens > 0 and q.tokens > 0 and q.tokens + tokens > max_tokens then
    local pace = tokens_a_second(q.pace)
    return 7, pace > 0 and whole((q.tokens + tokens - max_tokens) / pace * 1e6) or 0, whole(q.tokens)
  end
  if owner and owner.minute > 0 and tokens > 0 then
    -- A job that needs more than a minute's tokens is taken when none of them is used.
    local missing = math.min(tokens, owner.minute) - owner.left
    if missing > 0 then
      return 8, whole(math.ceil(missing / owner.minute * 60e6)), whole(math.max(0, math.floor(owner.left)))
    end
  end
end

-- Gathers the message of a job; it is written once all records are.
local function gather(q, step, delay, id, raw, listed, entry)
  local k = #q.fresh
  if listed then q.fresh[k + 1], q.fresh[k + 2] = NOW, id end
  q.depth = q.depth + 1
  if delay > 0 then
    q.due, q.parked = q.due or {}, q.parked or {}
    k = #q.due
    q.due[k + 1], q.due[k + 2] = whole(NOW_US + delay), id
    q.parked[k + 1], q.parked[k + 2] = id, raw
    return
  end
  q.tickets[step] = q.tickets[step] + 1
  local pushed = q.pushed[step] or {}
  q.pushed[step] = pushed
  if entry then
    local ordered = q.ordered[step] or {}
    q.ordered[step] = ordered
    ordered[#ordered + 1], ordered[#ordered + 2] = 0, order_entry(entry[1], entry[2], q.tickets[step], id)
  end
  pushed[#pushed + 1] = raw
end

local place = 0

-- Takes the jobs of the run that begins at `from`. Returns where the next begins, or why Redis refuses to write.
local function take(from)
  local name, step, delay, width = ARGV[from], ARGV[from + 1], tonumber(ARGV[from + 3]), tonumber(ARGV[from + 7])
  local max_depth, q, s, owner = tonumber(ARGV[from + 2]), queues[name], STEP_INDEX[step], owners[ARGV[from + 6]]
  local begin_by = ARGV[from + 4] ~= '0' and whole(NOW_US + tonumber(ARGV[from + 4]))
  local listed = ARGV[from + 5] == '1'
  local first = from + HEAD + tonumber(ARGV[from + HEAD - 1]) + 1
  local after = first + width * tonumber(ARGV[first - 1])
  -- The arguments of HSET; those in which the jobs differ are filled in for each.
  local set = {'', 's', delay > 0 and 'd' or 'q', 'c', NOW, 'p', step, unpack(ARGV, from + HEAD, first - 2)}
  local ticket_at = #set + 2
  if delay == 0 then set[ticket_at - 1], set[ticket_at] = 'n', '' end
  local tokens_at, max_tokens = #set + 2, tonumber(ARGV[from + 8])
  if width == 4 then set[tokens_at - 1], set[tokens_at] = 'tk', '' end
  -- The last one, as some jobs with tokens have none.
  local hash_at = #set + 2
  set[hash_at - 1] = 'h'
  for at = first, after - 1, width do
    place = place + 1
    local id, record, hash = ARGV[at], records[place], width >= 3 and ARGV[at + 2] or ''
    local tokens = width == 4 and ARGV[at + 3]
    local amount = tokens and tokens_in(tokens) or 0
    local code, created, depth = refusal(name, max_depth, id, record, hash, owner, amount, max_tokens)
    if code then
      local k = #answer
      answer[k + 1], answer[k + 2], answer[k + 3], answer[k + 4] = place, code, created, depth
    else
      set[1] = record
      if delay == 0 then set[ticket_at] = q.tickets[s] + 1 end
      set[hash_at] = hash
      if tokens then set[tokens_at] = tokens end
      local result = try('HSET', unpack(set, 1, hash ~= '' and hash_at or hash_at - 2))
      if type(result) == 'table' then return nil, result.err end
      written[record] = true
      if owner then
        owner.count, owner.fresh = owner.count + 1, owner.fresh + 1
        if owner.left then owner.left, owner.spent = owner.left - amount, owner.spent + amount end
      end
      q.tokens, q.more_tokens = q.tokens + amount, q.more_tokens + amount
      gather(q, s, delay, id, ARGV[at + 1], listed, tokens and {tokens, owner and owner.id})
      if begin_by then
        expiring[#expiring + 1] = begin_by
        expiring[#expiring + 1] = id
      end
    end
  end
  return after
end

i = 2
while i <= #ARGV do
  local after, err = take(i)
  if err then
    -- Refused before anything was written: Redis checks its memory only at a script's first write. Redis 6.2 puts the
    -- line of the script before the reason, and clients recognize it by its beginning.
    if string.find(err, 'OOM', 1, true) then err = "OOM command not allowed when used memory > 'maxmemory'." end
    return redis.error_reply(err)
  end
  i = after
end
for _, owner in pairs(owners) do
  if owner.fresh > 0 then try('HINCRBY', keys.IN_FLIGHT, owner.id, owner.fresh) end
  if owner.spent > 0 then take_minutes_tokens(owner.id, owner.minute, owner.spent) end
end
-- If the key has another type, these jobs expire only when they are claimed.
if #expiring > 0 then
  for k = 1, #expiring, CHUNK do
    try('ZADD', keys.EXPIRING, unpack(expiring, k, math.min(k + CHUNK - 1, #expiring)))
  end
  call('EXPIRE', keys.EXPIRING, EXPIRING_TTL_S)
end
for name, q in pairs(queues) do
  if q then
    for s, raws in pairs(q.pushed) do in_chunks('LPUSH', list_of(name, s), raws) end
    for s, ordered in pairs(q.ordered) do
      -- If the key has another type, these jobs wait by their places.
      for k = 1, #ordered, CHUNK do
        try('ZADD', keys.order .. list_of(name, s), unpack(ordered, k, math.min(k + CHUNK - 1, #ordered)))
      end
    end
    if q.more_tokens > 0 then count_tokens(name, q.more_tokens) end
    if q.due then
      in_chunks('HSET', keys.parked .. name, q.parked)
      in_chunks('ZADD', keys.delayed .. name, q.due)
    end
    local model, version = string.match(name, '^([^@]*)@?(.*)$', #keys.queue_name + 1)
    if version ~= '' then
      try('ZADD', keys.versions .. model, NOW, version)
      call('EXPIRE', keys.versions .. model, INDEX_TTL_S)
    end
    index_jobs(model, q.fresh, index_most)
  end
end
return answer
