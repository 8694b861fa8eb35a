-- @include callbacks
-- Note that leased jobs have begun to run, publish it, and notify their webhooks. The settlement writes the start too, so
-- that this is called only for jobs whose batch has not ended by then. KEYS: none.
-- ARGV: per job: id, token, when it began in us. Returns how many of them were noted: not those whose lease is lost, nor
-- those that were noted before.
local ours = {}
for i = 1, #ARGV, 3 do
  local token, state, started, owner, task = unpack(read(ARGV[i], 't', 's', 'st', 'ky', 'ws'))
  if token == ARGV[i + 1] and state == 'r' and not started then ours[#ours + 1] = {i, owner, task} end
end
if #ours == 0 then return 0 end
begin_with_removal(keys.PAYLOADS)
for _, o in ipairs(ours) do
  local i, owner, task = unpack(o, 1, 3)
  call('HSET', keys.job .. ARGV[i], 'st', ARGV[i + 2])
  if task then send_start_task(ARGV[i], owner, task) end
  call('PUBLISH', keys.progress_channel .. ARGV[i], '')
end
return #ours
