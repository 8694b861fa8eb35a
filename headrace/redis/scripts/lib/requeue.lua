-- @include order, failure
-- Putting a job that has failed back into its queue, as the job that it was.
-- The fields that its last run left in the record; the client's own fields stay.
local LEFT = {'a', 'k', 'x', 'xa', 'xl', 't', 'o', 'st', 'en', 'b', 'tm', 'dw', 'rt', 'e', 'tb', 'dl', 'cr', 'rn', 'fw', 'sg', 'pg'}

-- Pushes the message of a job at the end of its list. `state` and `owner` are its record's, nil without a record.
local function requeue_job(queue, s, id, raw, state, owner)
  forget_failure(id)
  redis.call('UNLINK', META .. id)
  local out = redis.call('HGET', KEYS[7], 'out' .. STEPS[s])
  local ticket = redis.call('LPUSH', KEYS[s], raw) + (tonumber(out or '0') or 0)
  -- Without a record (its result_ttl has passed) the message is like a stock client's: its claim makes a new one.
  if not state then return end
  redis.call('HDEL', JOB .. id, unpack(LEFT))
  redis.call('HSET', JOB .. id, 's', 'q', 'n', ticket, 'j', NOW)
  redis.call('PERSIST', JOB .. id)
  -- It has ended, and will end again. The limit of its API key is not checked, as an operator requeues it.
  if owner then redis.pcall('HINCRBY', IN_FLIGHT, owner, 1) end
  local tokens = redis.call('HGET', JOB .. id, 'tk')
  if tokens then
    count_tokens(queue, tokens_in(tokens))
    join_order(queue, s, id, ticket)
  end
end
