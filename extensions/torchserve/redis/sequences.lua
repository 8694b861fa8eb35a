-- Take a request of a sequence, if the limits of its model allow it; or change what is known of a sequence.
-- The end of a job writes nothing here: a sequence is looked at when a request wants it, or its place.
-- KEYS: none. ARGV: 1 take, drop (a job that was taken was not submitted) or end (nothing more comes), 2 model@version,
--       3 sequence, 4 job ('' for end), then for take: 5 the most sequences, 6 how many of its requests may wait while
--       one runs, 7 for how many us it may be silent, 8 how many us after its begin it ends (0: never), 9 '1' if all
--       requests that run are without a limit.
-- Returns {'taken', 0}, {'many', sequences}, {'full', waiting requests of this one}, or {'done', 0} for drop and end.
-- The state of a sequence: when it began, when its last request ended, 1 if nothing more comes, then for each request
-- that had not ended at the last look ' <job>:<when it was taken>'.
local what, sequence, job = ARGV[1], ARGV[3], ARGV[4]
local STATES, ENDS = keys.sequences .. ARGV[2], keys.sequence_ends .. ARGV[2]
local most, waiting, idle, timeout = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
-- A job without a record is submitted within this time, or its API process has died.
local SUBMIT_US = 30e6

local function look(name)
  local began, ended, over, rest = string.match(call('HGET', STATES, name) or '', '^(%d+) (%d+) ([01])(.*)$')
  if not began then return nil end
  local one = {began = tonumber(began), ended = tonumber(ended), over = over, jobs = {}, waits = 0}
  for id, taken in string.gmatch(rest, ' ([^ ]+):(%d+)') do
    local state, ended_at = unpack(read(id, 's', 'en'))
    if FINAL[state] then
      one.ended = math.max(one.ended, tonumber(ended_at) or 0)
    elseif state or NOW_US - taken < SUBMIT_US then
      one.jobs[#one.jobs + 1] = id .. ':' .. taken
      if not (state == 'r' and ARGV[9] == '1') then one.waits = one.waits + 1 end
      one.has = one.has or id == job
    else
      one.ended = math.max(one.ended, tonumber(taken))
    end
  end
  return one
end

local function ends_at(one)
  if one.over == '1' then return NOW_US end
  return math.min(one.ended + idle, timeout > 0 and one.began + timeout or math.huge)
end

local function lives(one) return #one.jobs > 0 or NOW_US < ends_at(one) end

local function forget(name)
  call('HDEL', STATES, name)
  call('ZREM', ENDS, name)
end

local function save(name, one)
  local state = {whole(one.began), whole(one.ended), one.over}
  for _, entry in ipairs(one.jobs) do state[#state + 1] = entry end
  call('HSET', STATES, name, table.concat(state, ' '))
end

-- With a request that has not ended, it lives for the idle time at least, or until its timeout.
local function save_until(name, one)
  if #one.jobs > 0 then one.ended = NOW_US end
  save(name, one)
  call('ZADD', ENDS, whole(math.max(NOW_US, ends_at(one))), name)
end

-- Forgets sequences that have ended, until there is room for one.
local function count_with_room()
  local count = call('HLEN', STATES)
  if count < most then return count end
  for _, name in ipairs(call('ZRANGEBYSCORE', ENDS, '-inf', NOW, 'LIMIT', 0, CHUNK)) do
    local one = look(name)
    if one and lives(one) then
      save_until(name, one)
    else
      forget(name)
      count = count - 1
      if count < most then return count end
    end
  end
  return count
end

-- A key of another type fails here, before anything is written.
call('ZCARD', ENDS)
local one = look(sequence)
if what == 'end' then
  if one then
    one.over = '1'
    save(sequence, one)
    call('ZADD', ENDS, NOW, sequence)
  end
  return {'done', 0}
end
if what == 'drop' then
  -- With a record it was submitted before, and the request that is refused is another one of the same id.
  if not (one and one.has) or call('EXISTS', keys.job .. job) == 1 then return {'done', 0} end
  local left, began = {}, false
  for _, entry in ipairs(one.jobs) do
    if string.match(entry, '^(.*):') == job then
      began = tonumber(string.match(entry, ':(%d+)$')) == one.began
    else
      left[#left + 1] = entry
    end
  end
  if began and #left == 0 then
    forget(sequence)
  else
    one.jobs = left
    save(sequence, one)
  end
  return {'done', 0}
end
-- A repeat of a job that was counted when it was submitted.
if (one and one.has) or call('EXISTS', keys.job .. job) == 1 then return {'taken', 0} end
if one and lives(one) then
  if one.waits > waiting then return {'full', one.waits} end
else
  forget(sequence)
  local count = count_with_room()
  if count >= most then return {'many', count} end
  one = {began = NOW_US, jobs = {}}
end
one.over = '0'
one.jobs[#one.jobs + 1] = job .. ':' .. NOW
save_until(sequence, one)
local ttl = keys.SEQUENCES_TTL_S + math.ceil(idle / 1e6)
call('EXPIRE', STATES, ttl)
call('EXPIRE', ENDS, ttl)
return {'taken', 0}
