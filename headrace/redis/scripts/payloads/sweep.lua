-- @include queues, payload_sizes
-- Check whether payloads are still needed. A payload in Redis that is not needed is deleted here. One that is stored
-- elsewhere is returned to the caller, which deletes it and then removes its entry. KEYS: none.
-- ARGV: 1 how many due entries to look at (0: only those named), 2 the bytes of payloads in Redis above which failed jobs
--       keep no input there ('': any), 3 the same for those of one API key in all stores ('': half of 2, in Redis), then
--       entries to look at, due or not.
-- Returns {how many were looked at, the entries to delete...}.
-- How long a payload that is needed is left alone, and how long a caller has to delete one that is not.
local NEEDED_US, DELETING_US, SECOND_US = 600000000, 60000000, 1000000

-- Whether a job is a dead letter of its model, in the queue of any version.
local function is_dead_letter(model, id)
  if call('EXISTS', keys.letters .. queue_of(model) .. ':' .. id) == 1 then return true end
  local versions = try('ZRANGE', keys.versions .. model, 0, -1)
  for _, version in ipairs(versions) do
    if call('EXISTS', keys.letters .. queue_of(model, version) .. ':' .. id) == 1 then return true end
  end
  return false
end

-- Whether the inputs of failed jobs leave room for those of jobs that wait.
local function has_room(ref, owner)
  local most, share = in_redis(ref) and tonumber(ARGV[2]) or nil, tonumber(ARGV[3])
  share = share or most and most / 2
  return not (most and counted() > most) and not (owner and share and counted(owner) > share)
end

-- Microseconds until an input is looked at again; nil if it is not needed. Like the message, it is needed as long as its
-- dead letter, or the message of its failure, exists. A record without a state belongs to a requeued job that waits.
local function input_needed_us(ref, id, model)
  local state, input, owner = unpack(read(id, 's', 'ir', 'ky'))
  if input and input ~= ref then return nil end
  if input and not (state and FINAL[state]) then return NEEDED_US end
  if call('EXISTS', keys.failed .. id) == 1 then
    if has_room(ref, owner) then return NEEDED_US end
    call('UNLINK', keys.failed .. id)
  end
  return is_dead_letter(model, id) and NEEDED_US or nil
end

-- The same for a result, which is written before its job is settled and is kept as long as the record.
local function result_needed_us(ref, id)
  local state, result = unpack(read(id, 's', 'rr'))
  if not state then return nil end
  if not FINAL[state] then return NEEDED_US end
  if not result or string.sub(result, 1, #ref + 1) ~= ref .. ' ' then return nil end
  local ttl_ms = call('PTTL', keys.job .. id)
  if ttl_ms < 0 then return NEEDED_US end
  call('PEXPIRE', keys.payload .. string.match(ref, ':(.*)'), ttl_ms)
  return ttl_ms * 1000 + SECOND_US
end

-- The same for a part of a file, which is written before the list of parts names it.
local function part_needed_us(ref, id)
  local file = keys.file .. id
  if call('TYPE', file .. ':parts').ok ~= 'zset' or not call('ZSCORE', file .. ':parts', ref) then return nil end
  local ttl_ms = call('PTTL', file)
  if ttl_ms < -1 then return nil end
  return ttl_ms < 0 and NEEDED_US or math.min(NEEDED_US, ttl_ms * 1000 + SECOND_US)
end

call('HLEN', keys.PAYLOAD_SIZES)
local entries = {}
if tonumber(ARGV[1]) > 0 then
  entries = call('ZRANGEBYSCORE', keys.PAYLOADS, '-inf', NOW, 'LIMIT', 0, ARGV[1])
end
for i = 4, #ARGV do
  if call('ZSCORE', keys.PAYLOADS, ARGV[i]) then entries[#entries + 1] = ARGV[i] end
end
begin_with_removal(keys.PAYLOADS)
local answer = {#entries}
for _, entry in ipairs(entries) do
  local ref, id, model, kind = string.match(entry, '^(%l[%l%d]*:%x+) (%S+) (%S+) ([irf])$')
  local wait_us
  if kind == 'i' then wait_us = input_needed_us(ref, id, model) end
  if kind == 'r' then wait_us = result_needed_us(ref, id) end
  if kind == 'f' then wait_us = part_needed_us(ref, id) end
  if wait_us then
    call('ZADD', keys.PAYLOADS, whole(NOW_US + wait_us), entry)
  elseif ref and not in_redis(ref) then
    call('ZADD', keys.PAYLOADS, whole(NOW_US + DELETING_US), entry)
    uncount_payload(ref)
    answer[#answer + 1] = entry
  else
    call('ZREM', keys.PAYLOADS, entry)
    if ref then
      call('UNLINK', keys.payload .. string.match(ref, ':(.*)'))
      uncount_payload(ref)
    end
  end
end
return answer
