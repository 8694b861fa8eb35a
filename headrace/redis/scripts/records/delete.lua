-- @include failure
-- Delete jobs that have ended, before their result_ttl has passed. Jobs that wait or run, and dead letters, stay.
-- The payload sweep deletes their payloads, as no record names these any more. KEYS: none.
-- ARGV: 1 the API key whose jobs are known ('': all; -: jobs of no key), then ids.
-- Returns {how many were deleted}.
local owner, names, deleted, n = ARGV[1], {}, {}, 0
for i = 2, #ARGV do
  local id = ARGV[i]
  local job = keys.job .. id
  local state = try('HGET', job, 's')
  -- Only a failed job can be a dead letter, and most jobs have not failed.
  local ended = FINAL[state] and (state == 's' or call('HEXISTS', job, 'dl') == 0)
  if ended and not deleted[id] and (owner == '' or owner == (call('HGET', job, 'ky') or '-')) then
    deleted[id] = true
    if state == 'f' then forget_failure(id) end
    names[n + 1], names[n + 2], names[n + 3] = job, keys.meta .. id, keys.pieces .. id
    n = n + 3
  end
end
for k = 1, #names, CHUNK do
  call('UNLINK', unpack(names, k, math.min(k + CHUNK - 1, #names)))
end
return {#names / 3}
