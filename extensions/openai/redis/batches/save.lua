-- @include list_id
-- Save the progress of a batch, its record and the files that its runner writes, all at once. If the lease is lost,
-- nothing is saved. Without fields and files it renews the lease. KEYS: none.
-- ARGV: 1 batch, 2 token, 3 us of the lease from now on (0 or less releases the batch), 4 its new status or '' for the same,
--       5 for how many seconds it is kept once it has ended, 6 how many values of fields follow, these, then for each file:
--       id, name, owner, bytes, for how many seconds it is kept once the batch has ended, a part that is replaced or '',
--       how many new parts, then reference and offset of each.
-- Returns {1, now in s, its status}; {0} if the lease is lost or the batch is gone.
local id, token, status = ARGV[1], ARGV[2], ARGV[4]
local batch = keys.batch .. id
local current = redis.call('HMGET', batch, 'status', 'token', 'cancelling_at')
if not current[1] or current[2] ~= token then return {0} end
local function lists_of_file(owner) return lists_of(keys.FILES, keys.files_of, owner) end
local fields = tonumber(ARGV[6])
local at = 7 + fields
while ARGV[at] do
  local file = keys.file .. ARGV[at]
  redis.call('HLEN', file); redis.call('ZCARD', file .. ':parts')
  check_lists(lists_of_file(ARGV[at + 2]))
  at = at + 7 + 2 * ARGV[at + 6]
end
begin_with_removal(keys.OPEN_BATCHES)
local ended = status == 'completed' or status == 'failed' or status == 'expired' or status == 'cancelled'
if current[3] and (status == 'in_progress' or status == 'finalizing') then status = '' end
-- The cancellation was requested before all jobs had ended, so the status shows it.
if current[3] and status == 'completed' then status = 'cancelled' end
if fields > 0 then redis.call('HSET', batch, unpack(ARGV, 7, 6 + fields)) end
if status ~= '' then redis.call('HSET', batch, 'status', status, status .. '_at', time[1]) end

local batch_ttl_s = redis.call('TTL', batch)
at = 7 + fields
while ARGV[at] do
  local name, owner, bytes, keep_s, replaced, count = unpack(ARGV, at + 1, at + 6)
  local file = keys.file .. ARGV[at]
  local parts = file .. ':parts'
  redis.call('HSET', file, 's', 'w', 'n', name, 'k', owner, 'b', bytes)
  if replaced ~= '' then redis.call('ZREM', parts, replaced) end
  local expires = whole(time[1] + (ended and tonumber(keep_s) or batch_ttl_s))
  for i = at + 7, at + 5 + 2 * count, 2 do
    redis.call('ZADD', parts, ARGV[i + 1], ARGV[i])
    local payload = keys.payload .. string.match(ARGV[i], ':(.*)')
    redis.call('EXPIREAT', payload, whole(time[1] + batch_ttl_s + tonumber(keep_s)))
  end
  if ended then
    redis.call('HSET', file, 's', 'p', 'u', 'batch_output', 'c', time[1], 'x', expires)
    list_id(lists_of_file(owner), ARGV[at], keys.file)
  end
  redis.call('EXPIREAT', file, expires)
  redis.call('EXPIREAT', parts, expires)
  at = at + 7 + 2 * count
end

if ended then
  redis.call('HDEL', batch, 'token', 'runner', 'checkpoint')
  redis.call('EXPIRE', batch, ARGV[5])
  redis.call('ZREM', keys.OPEN_BATCHES, id)
else
  redis.call('ZADD', keys.OPEN_BATCHES, whole(NOW_US + tonumber(ARGV[3])), id)
end
return {1, time[1], redis.call('HGET', batch, 'status')}
