-- @include order
-- Bring the jobs that run next to the head of their lists, for a claim that follows in the same write. For models whose
-- schedule is `tokens`; see docs/architecture/token-schedule.md.
-- KEYS: the queue's. ARGV: 1 queue, 2 to 5 how many jobs there may be when those of step 0, 3, 6 and 9 are taken, as for
-- jobs/claim.lua.
-- Returns {chosen, moved}: jobs that were put in order, and those of them whose message had to move.
-- A message that moves leaves a tombstone, so that its neighbours keep their places. What is no waiting job of ours with
-- an entry in the order keeps its place, and comes before all that move. The types of all keys are read first, and the first
-- write removes something (see begin_with_removal).
local chosen, moved_count = 0, 0
-- How many jobs, messages at the head, entries and API keys one call looks at in a list.
local ROOM_MAX, LOOK_MAX, PICK_MAX, KEYS_MAX = 512, 512, 1024, 64
-- For how long the shares of idle API keys are kept.
local SHARES_TTL_S = 86400

-- The id of a message of ours; nil for any other.
local function own_id(raw) return string.match(raw, '^{"headers":{"id":"([^"]+)"') end

-- Choosing the next jobs of one list.
-- a: {order, shares, v: the virtual time, out, picked: how many entries were removed, used: API key -> until when it has used
--    its share, flows: API keys with jobs of the earliest deadline}
local function entry_in(a, from, to) return call('ZRANGEBYLEX', a.order, from, to, 'LIMIT', 0, 1)[1] end

local function start_of(a, key)
  local used = a.used[key]
  if not used and a.v then used = tonumber(call('ZSCORE', a.shares, key) or '') end
  return math.max(a.v or 0, used or 0)
end

local function ticket_in(entry) return tonumber(string.match(entry, '^%S+ %S+ %S+ (%d+) ')) - 1e15 end

-- Finds the API keys with jobs of the earliest deadline, at most KEYS_MAX, from one that changes with each call.
local function find_flows(a)
  local first = entry_in(a, '-', '+')
  a.flows, a.deadline = {}, first and string.match(first, '^%S+')
  if not first then return end
  local deadline, top = a.deadline, '(' .. a.deadline .. '!'
  local from = a.turn and '(' .. deadline .. ' ' .. a.turn .. '!' or '[' .. deadline .. ' '
  local wrapped = not a.turn
  while #a.flows < KEYS_MAX do
    local entry = entry_in(a, from, top)
    if not entry then
      if wrapped then break end
      wrapped, from = true, '[' .. deadline .. ' '
    else
      local key = string.match(entry, '^%S+ (%S+)')
      if wrapped and a.turn and a.flows[1] and a.flows[1].key == key then break end
      a.flows[#a.flows + 1] = {key = key, start = start_of(a, key), entry = entry, ticket = ticket_in(entry)}
      from = '(' .. deadline .. ' ' .. key .. '!'
    end
  end
  a.turn = #a.flows == KEYS_MAX and a.flows[KEYS_MAX].key or nil
end

-- The flow whose API key has used least of its share; of equals the one with the oldest job.
local function least_served(flows)
  local best
  for k, f in ipairs(flows) do
    local b = best and flows[best]
    if not b or f.start < b.start or (f.start == b.start and f.ticket < b.ticket) then best = k end
  end
  return best
end

-- The waiting job of an entry whose message is at its place behind `front`; nil if it is not.
local function job_at(a, entry, ticket, front)
  local id = string.match(entry, '(%S+)$')
  local r = try('HMGET', keys.job .. id, 's', 'n', 'tk')
  if r.err or r[1] ~= 'q' or tonumber(r[2]) ~= ticket or not r[3] then return nil end
  local place = ticket - a.out
  if place <= front or place > a.length then return nil end
  local raw = call('LINDEX', a.list, -place)
  if not raw or own_id(raw) ~= id then return nil end
  return {id = id, place = place, raw = raw, tokens = math.max(1, tokens_in(r[3]))}
end

-- The next job; nil if no entry is left, or if too many are those of no job at its place.
local function pick(a, front)
  while a.picked < PICK_MAX do
    if not a.flows or #a.flows == 0 then
      find_flows(a)
      if #a.flows == 0 then return nil end
    end
    local k = least_served(a.flows)
    local f = a.flows[k]
    local entry, job = f.entry, job_at(a, f.entry, f.ticket, front)
    call('ZREM', a.order, entry)
    a.picked = a.picked + 1
    if job then
      a.v = f.start
      f.start = f.start + job.tokens
      a.used[f.key] = f.start
    end
    f.entry = entry_in(a, '(' .. entry, '(' .. a.deadline .. ' ' .. f.key .. '!')
    if f.entry then f.ticket = ticket_in(f.entry) else table.remove(a.flows, k) end
    if job then return job end
  end
end

-- Whether the message at a place is that of a job in the order.
local function is_ordered(a, raw, place)
  local id = own_id(raw)
  local r = id and try('HMGET', keys.job .. id, 's', 'n', 'tk', 'ky')
  if not r or r.err or r[1] ~= 'q' or not r[3] or tonumber(r[2]) ~= a.out + place then return false end
  return call('ZSCORE', a.order, order_entry(r[3], r[4], tonumber(r[2]), id)) ~= false
end

-- Chooses the jobs of a list that come next. Returns how many messages at the head are right, and the jobs that must move
-- there, behind those.
local function choose(a, room)
  local front, left, moved, looked, coming = a.front, room - a.front, {}, 0, nil
  while left > 0 and front < a.length and looked < LOOK_MAX do
    looked = looked + 1
    coming = coming or pick(a, front)
    if coming and coming.place == front + 1 then
      front, left, chosen, coming = front + 1, left - 1, chosen + 1, nil
    else
      local raw = call('LINDEX', a.list, -front - 1)
      if raw == TOMBSTONE then
        front = front + 1
      elseif coming and is_ordered(a, raw, front + 1) then
        break
      else
        front, left = front + 1, left - 1
      end
    end
  end
  -- What was picked must move, even if there is no room left.
  while coming or left > 0 and looked < LOOK_MAX do
    coming = coming or pick(a, front)
    if not coming then break end
    moved[#moved + 1] = coming
    left, coming = left - 1, nil
  end
  return front, moved
end

-- Moves messages to the head of a list, behind the first `front`.
local function move(a, front, moved)
  for _, job in ipairs(moved) do call('LSET', a.list, -job.place, TOMBSTONE) end
  local kept, raws = front > 0 and call('LRANGE', a.list, -front, -1) or {}, {}
  if front > 0 then call('LTRIM', a.list, 0, -(front + 1)) end
  for k = #moved, 1, -1 do raws[#raws + 1] = moved[k].raw end
  in_chunks('RPUSH', a.list, raws)
  in_chunks('RPUSH', a.list, kept)
  a.out = a.out - #moved
  for k, job in ipairs(moved) do call('HSET', keys.job .. job.id, 'n', whole(a.out + front + k)) end
  call('HINCRBY', KEYS[7], 'out' .. a.step, -#moved)
  call('HINCRBY', KEYS[7], 'tomb' .. a.step, #moved)
  moved_count, chosen = moved_count + #moved, chosen + #moved
end

local function arrange(s, length, room)
  local step, list = STEPS[s], KEYS[s]
  local a = {step = step, list = list, length = length, order = keys.order .. list, shares = keys.shares .. list,
    picked = 0, used = {}}
  local out, to, v, turn = unpack(call('HMGET', KEYS[7], 'out' .. step, 'to' .. step, 'fair' .. step, 'turn' .. step))
  a.out, a.v, a.turn = tonumber(out or '0') or 0, tonumber(v or ''), turn ~= '' and turn or nil
  -- What an earlier call has put in order, and no claim has taken yet.
  a.front = math.min(length, math.max(0, (tonumber(to or '0') or 0) - a.out))
  if a.front >= room then return end
  local front, moved = choose(a, room)
  if a.picked == 0 then return end
  if #moved > 0 then move(a, front, moved) end
  -- If the virtual time was lost, the shares mean nothing.
  if not v then call('UNLINK', a.shares) end
  call('HSET', KEYS[7], 'to' .. step, whole(a.out + front + #moved), 'fair' .. step, whole(a.v or 0),
    'turn' .. step, a.turn or '')
  for key, used in pairs(a.used) do call('ZADD', a.shares, whole(used), key) end
  -- A key that was idle saves no credit, so a share that is not ahead means nothing.
  call('ZREMRANGEBYSCORE', a.shares, '-inf', whole(a.v or 0))
  call('EXPIRE', a.shares, SHARES_TTL_S)
end

-- Whether a list has an order; a key of another type means that its jobs wait by their places.
local function usable(list)
  local size = try('ZCARD', keys.order .. list)
  return type(size) == 'number' and size > 0 and type(try('ZCARD', keys.shares .. list)) == 'number'
end

local lengths, wanted = {}, {}
for s = 1, 4 do lengths[s] = call('LLEN', KEYS[s]) end
local before, tombs = 0, call('HMGET', KEYS[7], 'tomb0', 'tomb3', 'tomb6', 'tomb9')
for s = 1, 4 do
  local room = math.min(ROOM_MAX, tonumber(ARGV[1 + s]) - before)
  if room > 0 and lengths[s] > room and usable(KEYS[s]) then
    wanted[#wanted + 1] = {s, lengths[s], room}
  end
  -- The claim takes no tombstones.
  before = before + math.max(0, lengths[s] - (tonumber(tombs[s] or '0') or 0))
end
if #wanted == 0 then return {0, 0} end
for _, w in ipairs(wanted) do arrange(unpack(w)) end
return {chosen, moved_count}
