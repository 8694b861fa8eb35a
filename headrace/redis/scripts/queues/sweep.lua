-- @include release, queues
-- Promote delayed jobs that are due to their lists, and reap expired leases.
-- KEYS: the queue's. ARGV: 1 queue, 2 until when (in us) to reap: a call that arrives later was sent before an outage, and
--       reaps nothing; 3 losses (see lib/release.lua), 4 limit, 5 how many orphaned ends to hand out, 6 queue of the
--       caller's own version, or ''.
-- Returns {promoted, reaped, us until the next delayed job or -1, then jobs in the list of each step (the first is -1 if the
-- queue is paused), now, how many queues of versions of this model are in use, their names, then per
-- orphaned end: its name, and the length of the Celery result, ':', that result and the message}.
check_types(true)
local limit = tonumber(ARGV[4])
local paused = is_paused(ARGV[1])
local promoted, reaped = 0, 0

-- A due message whose job ended meanwhile is dropped. One whose record was deleted is like a stock client's.
local function promote(id)
  local raw = call('HGET', KEYS[9], id)
  local state, step = unpack(read(id, 's', 'p'))
  call('ZREM', KEYS[8], id)
  call('HDEL', KEYS[9], id)
  if not raw or (state and state ~= 'd') then return end
  local s = STEP_INDEX[step or '0'] or 1
  local out = call('HGET', KEYS[7], 'out' .. STEPS[s])
  local ticket = call('LPUSH', KEYS[s], raw) + (tonumber(out or '0') or 0)
  if state then
    leave_order(ARGV[1], id)
    call('HSET', keys.job .. id, 's', 'q', 'n', ticket, 'j', NOW)
    join_order(ARGV[1], s, id, ticket)
  end
  promoted = promoted + 1
end

for _, id in ipairs(call('ZRANGEBYSCORE', KEYS[8], '-inf', NOW, 'LIMIT', 0, limit)) do promote(id) end
if NOW_US <= tonumber(ARGV[2]) then
  local expired = {}
  for i, id in ipairs(call('ZRANGEBYSCORE', KEYS[5], '-inf', NOW, 'LIMIT', 0, limit)) do
    expired[i] = {id = id, token = tonumber(read(id, 't')[1] or '0') or 0}
  end
  for _, c in ipairs(latest_first(expired)) do release(c.id, 'lost', ARGV[3], ARGV[1], WITH_WORKER) end
  reaped = #expired
  if reaped > 0 then add_to_counter(ARGV[1], 'leases_lost', reaped) end
end

-- Tombstones of messages that another program removed (celery purge, DEL) would make a queue look shorter for ever.
local left, total, entombed = {}, 0, call('HLEN', KEYS[11]) > 0
local tombs = call('HMGET', KEYS[7], 'tomb0', 'tomb3', 'tomb6', 'tomb9', 'tokens')
for s = 1, 4 do
  local length = call('LLEN', KEYS[s])
  left[s], total = length, total + length
  if length == 0 and tombs[s] and tombs[s] ~= '0' then call('HDEL', KEYS[7], 'tomb' .. STEPS[s]) end
end
if entombed and total == 0 then call('UNLINK', KEYS[11]) end
-- The same for tokens and the order of jobs, which end with these.
if tombs[5] and total == 0 and call('ZCARD', KEYS[5]) == 0 and call('ZCARD', KEYS[8]) == 0 then
  call('HDEL', KEYS[7], 'tokens')
  for s = 1, 4 do
    if type(try('ZCARD', keys.order .. KEYS[s])) == 'number' then call('UNLINK', keys.order .. KEYS[s]) end
  end
end
if paused then left[1] = -1 end
local due = call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')
local answer = {promoted, reaped, due[2] and math.max(0, tonumber(due[2]) - NOW_US) or -1,
  left[1], left[2], left[3], left[4], NOW, 0}

-- Any worker of a model sweeps the queues of all versions, as a version may have lost its last worker. Messages that stock
-- clients pushed are found here first.
local VERSIONS_MAX = 64
local model, version = model_of(ARGV[1])
local function add_used(queue)
  if not is_used(queue) then return end
  answer[9] = answer[9] + 1
  answer[#answer + 1] = queue
end
if version == '' then
  if (ARGV[6] or '') ~= '' then add_used(ARGV[6]) end
  local versions = try('ZRANGE', keys.versions .. model, 0, VERSIONS_MAX - 1)
  for _, one in ipairs(versions) do
    local queue = queue_of(model, one)
    if queue ~= ARGV[6] then add_used(queue) end
  end
elseif total > 0 then
  note_version(model, version)
end

-- Removes jobs whose record has expired from the index of the model: some at a place that differs each time.
local INDEX_LOOKED = 200
local function clean_index()
  local index = keys.job_index .. model
  local total = try('ZCARD', index)
  if type(total) ~= 'number' or total == 0 then return end
  local from = NOW_US % total
  local ids, records, gone = call('ZRANGE', index, from, from + INDEX_LOOKED - 1), {}, {}
  for i, id in ipairs(ids) do records[i] = keys.job .. id end
  if call('EXISTS', unpack(records)) == #ids then return end
  for i, id in ipairs(ids) do
    if call('EXISTS', records[i]) == 0 then gone[#gone + 1] = id end
  end
  call('ZREM', index, unpack(gone))
end
if version == '' then clean_index() end

-- Orphaned ends (see lib/callbacks.lua). A worker that has sent the callbacks removes the end; until then it is handed out
-- again after a while.
local ORPHANED_MAX_BYTES, SENDING_US = 1048576, 60000000
local function hand_out(most)
  local orphaned, ends, bytes = keys.orphaned .. ARGV[1], keys.orphaned_ends .. ARGV[1], 0
  local names = most > 0 and try('ZRANGEBYSCORE', orphaned, '-inf', NOW, 'LIMIT', 0, most) or {}
  if names.err or #names == 0 then return end
  begin_with_removal(orphaned)
  for _, name in ipairs(names) do
    if bytes >= ORPHANED_MAX_BYTES then return end
    local ending = try('HGET', ends, name)
    if type(ending) == 'string' then
      call('ZADD', orphaned, whole(NOW_US + SENDING_US), name)
      answer[#answer + 1] = name
      answer[#answer + 1] = ending
      bytes = bytes + #ending
    else
      call('ZREM', orphaned, name)
    end
  end
end
hand_out(tonumber(ARGV[5] or '0'))
return answer
