-- @include waiting, failures
-- Put failed jobs back at the end of their list, as the jobs that they were. KEYS: the queue's. ARGV: 1 queue, then entries
-- of the failures of its model. Returns per entry: queued, elsewhere (it is of another queue of the model), gone (the job
-- was deleted, retried or replaced), alive (its message is still listed), or no-message (it cannot be retried).
return for_each_entry(function(entry)
  local id, why = failed_job(entry)
  if not id then return why end
  if call('HEXISTS', KEYS[11], id) == 1 then return 'alive' end
  local letter = keys.letters .. ARGV[1] .. ':' .. id
  local raw = try('GET', keys.failed .. id)
  if type(raw) ~= 'string' then raw = try('HGET', letter, 'raw') end
  if type(raw) ~= 'string' then return 'no-message' end
  call('ZREM', KEYS[10], id)
  call('UNLINK', letter)
  local step, owner = unpack(read(id, 'p', 'ky'))
  requeue_job(ARGV[1], STEP_INDEX[step or '0'] or 1, id, raw, 'f', owner)
  return 'queued'
end)
