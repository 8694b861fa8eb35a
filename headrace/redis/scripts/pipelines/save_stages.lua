-- @include callbacks
-- Save the stages of a pipeline's job, and publish that they have changed. In the same call free the results of stage jobs
-- that no later stage reads. KEYS: none.
-- ARGV: 1 id of the pipeline's job, 2 its token, 3 the stages as JSON, 4 when it began in us, then ids of stage jobs that have succeeded. Their
--       records stay; their stored results are due for the payload sweep. It can be repeated.
-- Returns 1, or 0 if the lease is lost.
local token, state, started, owner, task = unpack(read(ARGV[1], 't', 's', 'st', 'ky', 'ws'))
if token ~= ARGV[2] or state ~= 'r' then return 0 end
local freed = {}
for i = 5, #ARGV do
  local of, result, model = unpack(read(ARGV[i], 's', 'rr', 'm'))
  if of == 's' then freed[#freed + 1] = {ARGV[i], result, model} end
end
begin_with_removal(keys.PAYLOADS)
for _, one in ipairs(freed) do
  local id, result, model = unpack(one, 1, 3)
  call('UNLINK', keys.meta .. id)
  call('HDEL', keys.job .. id, 'rr', 'r')
  call('HSET', keys.job .. id, 'fd', '1')
  if result and model then
    try('ZADD', keys.PAYLOADS, 'XX', NOW, string.match(result, '^%S*') .. ' ' .. id .. ' ' .. model .. ' r')
  end
end
call('HSET', keys.job .. ARGV[1], 'sg', ARGV[3])
if not started then call('HSET', keys.job .. ARGV[1], 'st', ARGV[4]) end
if task then send_start_task(ARGV[1], owner, task) end
call('PUBLISH', keys.progress_channel .. ARGV[1], '')
return 1
